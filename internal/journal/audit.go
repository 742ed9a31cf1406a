package journal

import (
	"context"
	"database/sql"
	"time"
)

// Record is one of the audit.
type Record struct {
	// ID is made by NewID; records are in its order.
	ID     string
	At     time.Time // on the log's clock, when it is read
	Who    string
	Action string
	// What is an entry's id, a data source's name or a filter.
	What string
	// Units is how many entries it was done to.
	Units  int
	Reason string
}

// The most that a record keeps of a text.
const (
	MaxWho    = 255
	MaxReason = 4096
	maxWhat   = 16 << 10
)

// AuditStatement writes a record into the audit: it belongs into the transaction
// of what it tells.
func (j *Journal) AuditStatement(r Record) (statement string, args []any, err error) {
	if err := j.usable(Audit); err != nil {
		return "", nil, err
	}
	return j.Text(`INSERT INTO bed_audit (id, creation_time, who, action, what, units, reason) VALUES (?, {now}, ?, ?, ?, ?, ?)`),
		[]any{r.ID, text(r.Who, MaxWho), text(r.Action, 20), text(r.What, maxWhat), r.Units, text(r.Reason, MaxReason)}, nil
}

// AddAudit writes a record by itself.
func (j *Journal) AddAudit(ctx context.Context, r Record) error {
	statement, args, err := j.AuditStatement(r)
	if err != nil {
		return err
	}
	_, err = j.db.ExecContext(ctx, statement, args...)
	if err != nil {
		j.note(Audit, err)
	}
	return err
}

// ReadAudit gives records, the newest first, behind the one with the id after.
func (j *Journal) ReadAudit(ctx context.Context, after string, most int) (all []Record, err error) {
	where, args := ``, []any{}
	if after != "" {
		where, args = ` WHERE id < ?`, append(args, after)
	}
	err = j.each(ctx, Audit, func(rows *sql.Rows) error {
		var r Record
		var ms int64
		if err := rows.Scan(&r.ID, &ms, &r.Who, &r.Action, &r.What, &r.Units, &r.Reason); err != nil {
			return err
		}
		r.At = moment(ms)
		all = append(all, r)
		return nil
	}, `SELECT id, creation_time, who, action, what, units, reason FROM bed_audit`+where+` ORDER BY id DESC LIMIT ?`, append(args, most)...)
	return all, err
}
