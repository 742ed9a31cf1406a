package attempt

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
)

// PurgeReceipts looks at a page of the receipts of the log r.LogIdentity, those after
// the id after, and erases those that no unit in the log has any more, once
// their retention is over since that was found. missing says which units, and
// which receipts under a caller's key, are not in the log (txlog.Storage.Missing):
// under a key another unit than the one that left the receipt may carry it too.
//
// The retention cannot count from when the entry was written or the receipt was
// met last, because a log may be older than that when a person discards it, and
// a worker stand still with it. A request under a key may be sent again, and
// logged, after the question: it keeps what it meets anew, or finds it gone
// (keepReceipt). It returns how many it erased, and the id after which the next
// page begins, also if this one failed; that is empty at the end.
func PurgeReceipts(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, after string, missing func(context.Context, []string) ([]string, error)) (next string, erased int, err error) {
	type seen struct {
		id, unit string
		state    int64
		keyed    bool
	}
	var look []seen
	var asked []string
	texts := r.sql(d.Flavor)
	rows, err := askCommitted(ctx, d, conn, texts.page, r.LogIdentity, after)
	for _, row := range rows {
		next = Text(row[0])
		s := seen{next, Text(row[1]), Number(row[2]), Number(row[3]) != 0}
		if s.state == receiptNew {
			continue
		}
		look, asked = append(look, s), append(asked, s.unit)
		if s.keyed {
			asked = append(asked, s.id)
		}
	}
	if len(rows) < receiptPageSize {
		next = ""
	}
	if err != nil || len(look) == 0 {
		return next, 0, err
	}
	gone, err := missing(ctx, asked)
	if err != nil {
		return next, 0, err
	}
	isGone := make(map[string]bool, len(gone))
	for _, id := range gone {
		isGone[id] = true
	}
	var newlyGone, due, back []string
	for _, s := range look {
		switch gone := isGone[s.unit] && (!s.keyed || isGone[s.id]); {
		case gone && s.state == receiptDue:
			due = append(due, s.id)
		case gone && s.state == receiptInLog:
			newlyGone = append(newlyGone, s.id)
		case !gone && s.state != receiptInLog:
			back = append(back, s.id) // a write to the log that came late
		}
	}
	if _, err := byIDs(ctx, d, conn, texts.gone, newlyGone, r.Retention.Milliseconds(), r.KeyRetention.Milliseconds()); err != nil {
		return next, 0, err
	}
	if _, err := byIDs(ctx, d, conn, texts.back, back); err != nil {
		return next, 0, err
	}
	erased, err = byIDs(ctx, d, conn, texts.purge, due)
	return next, erased, err
}
