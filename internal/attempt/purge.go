package attempt

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/dialect"
)

// PurgeReceipts looks at a page of the receipts of the log r.LogIdentity, from the id after on. It
// first marks a receipt whose unit is no longer in the log, and erases it one retention later.
// missing returns the units, and the receipts under a caller's key, that are not in the log
// (txlog.Storage.Missing). Under a key, another unit than the one that left the receipt may carry
// it too.
//
// The retention cannot count from the time of the entry or of the last look at the receipt. A log
// may be older than the retention when an operator discards it, and a stopped worker is as old. A
// caller may resend a request under a key, and have it logged, after the call of missing. That
// request then either renews the receipt or finds it gone (keepReceipt). PurgeReceipts returns the
// number of erased receipts and the id for the next page, also after a failure. The id is empty at
// the end.
func PurgeReceipts(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, after string, missing func(context.Context, []string) ([]string, error)) (next string, erased int, err error) {
	type seen struct {
		id, unit string
		state    int64
		keyed    bool
	}
	var look []seen
	var asked []string
	rows, err := askCommitted(ctx, d, conn, r.text(d.Flavor, pageReceipts), r.LogIdentity, after)
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
	if _, err := byIDs(ctx, d, conn, r, goneRows, newlyGone, r.Retention.Milliseconds(), r.KeyRetention.Milliseconds()); err != nil {
		return next, 0, err
	}
	if _, err := byIDs(ctx, d, conn, r, backRows, back); err != nil {
		return next, 0, err
	}
	erased, err = byIDs(ctx, d, conn, r, purgeRows, due)
	return next, erased, err
}
