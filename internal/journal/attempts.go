package journal

import (
	"context"
	"database/sql"
	"time"
)

// Attempt is an attempt to deliver a unit that failed.
type Attempt struct {
	// At is when it ended: on this process's clock when it is told, on the log's
	// when it is read.
	At time.Time
	// Origin is who made it: "caller", "sync retry" or "async job".
	Origin string
	// Class is what the error means, in the words of delivery.Class.
	Class string
	// Err is the error's text, which may quote values.
	Err string
}

const (
	// maxError is how much of an error is kept, as in the log's last_error.
	maxError = 8 << 10
	// maxAttempts is how many of one unit are told at once.
	maxAttempts = 64
)

// AddAttempts keeps the failed attempts at a unit. The error is for tests: no
// outcome may depend on it.
func (j *Journal) AddAttempts(ctx context.Context, unitID string, attempts []Attempt) error {
	if j == nil || len(attempts) == 0 || j.usable(Attempts) != nil {
		return nil
	}
	attempts = attempts[max(0, len(attempts)-maxAttempts):]
	now := time.Now()
	args := make([]any, 0, 6*len(attempts))
	for _, a := range attempts {
		args = append(args, unitID, NewID(), max(0, now.Sub(a.At).Milliseconds()), text(a.Origin, 20), text(a.Class, 20), text(a.Err, maxError))
	}
	_, err := j.exec(ctx, Attempts, `INSERT INTO bed_attempt (unit_id, id, creation_time, origin, class, error) VALUES `+
		rowsOf(len(attempts), `(?, ?, {now} - ?, ?, ?, ?)`), args...)
	return err
}

// ReadAttempts gives the failed attempts at a unit, the newest first.
func (j *Journal) ReadAttempts(ctx context.Context, unitID string, most int) (all []Attempt, err error) {
	err = j.each(ctx, Attempts, func(rows *sql.Rows) error {
		var a Attempt
		var ms int64
		if err := rows.Scan(&ms, &a.Origin, &a.Class, &a.Err); err != nil {
			return err
		}
		a.At = moment(ms)
		all = append(all, a)
		return nil
	}, `SELECT creation_time, origin, class, error FROM bed_attempt WHERE unit_id = ? ORDER BY id DESC LIMIT ?`, unitID, most)
	return all, err
}
