package journal

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/sqltext"
)

// Attempt is a failed attempt to deliver a unit.
type Attempt struct {
	// At is the end of the attempt: on this process's clock in AddAttempts, on the log's in
	// ReadAttempts.
	At time.Time `json:"time"`
	// Origin is the maker: "caller", "sync retry" or "async job".
	Origin string `json:"origin"`
	// Class is the class of the error, in the words of dialect.Class.
	Class string `json:"class"`
	// Err is the error's text, which may quote values.
	Err string `json:"error"`
}

const (
	// maxError is the maximum size of a kept error, as in the log's last_error.
	maxError = 8 << 10
	// maxAttempts is the maximum number of attempts of one unit in one call.
	maxAttempts = 64
)

// AddAttempts keeps the failed attempts at a unit. The error is for tests: no outcome may
// depend on it.
func (j *Journal) AddAttempts(ctx context.Context, unitID string, attempts []Attempt) error {
	if j == nil || len(attempts) == 0 || !j.on(Attempts) {
		return nil
	}
	attempts = attempts[max(0, len(attempts)-maxAttempts):]
	now := time.Now()
	args := make([]any, 0, 6*len(attempts))
	for _, a := range attempts {
		args = append(args, unitID, NewID(), max(0, now.Sub(a.At).Milliseconds()), text(a.Origin, 20), text(a.Class, 20), text(a.Err, maxError))
	}
	_, err := j.exec(ctx, Attempts, `INSERT INTO bed_attempt (unit_id, id, creation_time, origin, class, error) VALUES `+
		sqltext.List(len(attempts), `(?, ?, {now} - ?, ?, ?, ?)`, `, `), args...)
	return err
}

// End is the end of a unit whose entry is gone. It is stored among the attempts.
type End string

// The ends.
const (
	Discarded End = "discarded" // by an operator, or with its group
	Delivered End = "delivered" // by the job
)

// byOperator is the origin of stored ends: no attempt has it.
const byOperator = "operator"

// Statement records the end of n units. Its parameters are, for each, the unit's id and one
// [NewID] for all; in PostgreSQL that one, and an array of any number of units. Units may
// be repeated, except in PostgreSQL.
func (end End) Statement(f sqltext.Flavor, n int) string {
	rest := `?, {now}, '` + byOperator + `', '` + string(end) + `', ''`
	rows := `SELECT u, ` + rest + ` FROM unnest(?::text[]) AS u`
	if f != sqltext.Postgres {
		rows = `VALUES ` + sqltext.List(n, `(?, `+rest+`)`, `, `)
	}
	return f.Pick(sqltext.Texts{MySQL: `INSERT IGNORE`, Postgres: `INSERT`, SQLite: `INSERT OR IGNORE`}) +
		` INTO bed_attempt (unit_id, id, creation_time, origin, class, error) ` + rows
}

// Ends returns the ends of the units that ended within keepAttempts.
func (j *Journal) Ends(ctx context.Context, unitIDs []string) (map[string]End, error) {
	found := map[string]End{}
	for portion := range slices.Chunk(unitIDs, 256) {
		args := make([]any, len(portion))
		for i, id := range portion {
			args[i] = id
		}
		if err := j.each(ctx, Attempts, func(rows *sql.Rows) error {
			var id string
			var end End
			err := rows.Scan(&id, &end)
			if found[id] != Discarded {
				found[id] = end
			}
			return err
		}, `SELECT unit_id, class FROM bed_attempt WHERE origin = '`+byOperator+`' AND unit_id IN (`+sqltext.List(len(portion), "?", ", ")+`)`, args...); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// ReadAttempts returns the failed attempts at a unit, the newest first.
func (j *Journal) ReadAttempts(ctx context.Context, unitID string, most int) ([]Attempt, error) {
	return list(ctx, j, Attempts, func(rows *sql.Rows, a *Attempt) error {
		var ms int64
		err := rows.Scan(&ms, &a.Origin, &a.Class, &a.Err)
		a.At = time.UnixMilli(ms).UTC()
		return err
	}, `SELECT creation_time, origin, class, error FROM bed_attempt WHERE unit_id = ? AND origin <> '`+byOperator+`' ORDER BY id DESC LIMIT ?`, unitID, most)
}
