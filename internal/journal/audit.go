package journal

import (
	"context"
	"database/sql"
	"time"
)

// Action is the kind of action in an audit record.
type Action string

// Record is a record of the audit.
type Record struct {
	// ID comes from NewID; records are in its order.
	ID     string    `json:"id"`
	Time   time.Time `json:"time"` // on the log's clock, when it is read
	Who    string    `json:"who"`
	Action Action    `json:"action"`
	// What is an entry's id, a data source's name, or a filter or an amendment as JSON.
	What string `json:"what"`
	// Whole means that What must be kept whole, however long, or the record is not kept.
	Whole bool `json:"-"`
	// Count is the number of affected entries.
	Count  int    `json:"count"`
	Reason string `json:"reason"`
}

// The maximum sizes of a record's texts.
const (
	MaxWho    = 255
	MaxReason = 4096
	maxWhat   = 16 << 10
)

// AuditStatement writes a record into the audit: run it in the transaction of the action.
func (j *Journal) AuditStatement(r Record) (statement string, args []any, err error) {
	if _, err := j.usable(Audit); err != nil {
		return "", nil, err
	}
	if !r.Whole {
		r.What = text(r.What, maxWhat)
	}
	return j.Text(`INSERT INTO bed_audit (id, creation_time, who, action, what, units, reason) VALUES (?, {now}, ?, ?, ?, ?, ?)`),
		[]any{r.ID, text(r.Who, MaxWho), text(string(r.Action), 20), r.What, r.Count, text(r.Reason, MaxReason)}, nil
}

// AddAudit writes a record separately.
func (j *Journal) AddAudit(ctx context.Context, r Record) error {
	statement, args, err := j.AuditStatement(r)
	if err != nil {
		return err
	}
	_, err = j.exec(ctx, Audit, statement, args...)
	return err
}

// ReadAudit returns the records after the one with the id after, the newest first.
func (j *Journal) ReadAudit(ctx context.Context, after string, most int) ([]Record, error) {
	where, args := ``, []any{}
	if after != "" {
		where, args = ` WHERE id < ?`, append(args, after)
	}
	return list(ctx, j, Audit, func(rows *sql.Rows, r *Record) error {
		var ms int64
		err := rows.Scan(&r.ID, &ms, &r.Who, &r.Action, &r.What, &r.Count, &r.Reason)
		r.Time = time.UnixMilli(ms).UTC()
		return err
	}, `SELECT id, creation_time, who, action, what, units, reason FROM bed_audit`+where+` ORDER BY id DESC LIMIT ?`, append(args, most)...)
}
