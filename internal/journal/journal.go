package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
)

// The tables.
const (
	Attempts    = "bed_attempt"
	Activity    = "bed_activity"
	Audit       = "bed_audit"
	DataSources = "bed_data_source"
)

// Tables lists all of them.
var Tables = [...]string{Attempts, Activity, Audit, DataSources}

// Keeps reports whether a table of the log's database belongs to the journal.
func Keeps(table string) bool { return slices.Contains(Tables[:], table) }

// ErrOff is wrapped by the error of a call that needs an unusable table.
var ErrOff = errors.New("the table cannot be used")

// Journal is the handle on the tables of one log. A nil Journal keeps no records. It is safe
// for concurrent use.
type Journal struct {
	db *sql.DB
	sqltext.Flavor

	mu sync.Mutex
	// off holds the unusable tables.
	off map[string]*refusal
	// again is the pause before another use of an unusable table.
	again time.Duration

	counts counts
	closed atomic.Bool
}

// refusal is the reason for an unusable table and the time of its discovery. told is set
// once TellOff has warned of it.
type refusal struct {
	err  error
	at   time.Time
	told bool
}

// askAgain is short enough for an operator to see the effect of making a table or granting a
// right.
const askAgain = time.Minute

// New returns a journal on the log's connections. off holds the errors of unusable tables.
// activity false turns minutes off.
func New(db *sql.DB, f sqltext.Flavor, off map[string]error, activity bool) *Journal {
	j := &Journal{db: db, Flavor: f, off: map[string]*refusal{}, again: askAgain}
	for table, err := range off {
		j.off[table] = &refusal{err: err, at: time.Now()}
	}
	j.counts.off = !activity
	return j
}

// DB is the pool of the log's database. SQLite's has one connection: a caller that reads
// rows must not start another query in the meantime.
func (j *Journal) DB() *sql.DB { return j.db }

// Off returns the errors of unusable tables; empty if all are usable.
func (j *Journal) Off() map[string]error {
	all := map[string]error{}
	j.mu.Lock()
	defer j.mu.Unlock()
	for table, r := range j.off {
		all[table] = r.err
	}
	return all
}

// TellOff warns of unusable tables, once for each until it is usable again. The caller needs
// no right on the needless tables.
func (j *Journal) TellOff(warn func(args ...any), needless ...string) {
	if j == nil {
		return
	}
	for _, table := range Tables {
		j.mu.Lock()
		r := j.off[table]
		tell := r != nil && !r.told
		if tell && slices.Contains(needless, table) && dberr.Of(r.err).Denied() {
			tell = false
		}
		if tell {
			r.told = true
		}
		j.mu.Unlock()
		if tell {
			warn(fmt.Sprintf("bed: the log's table %s cannot be used: %v; writes and deliveries do not depend on it, but operators cannot see what it would hold", table, r.err))
		}
	}
}

// usable returns the error of an unusable table. From time to time it allows another use: an
// operator may have made the table, or granted a right.
func (j *Journal) usable(table string) error {
	if j == nil {
		return fmt.Errorf("%s: %w: this log keeps none", table, ErrOff)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if r, off := j.off[table]; off && time.Since(r.at) < j.again {
		return fmt.Errorf("%s: %w: %w", table, ErrOff, r.err)
	}
	return nil
}

// on reports whether a table is usable.
func (j *Journal) on(table string) bool { return j.usable(table) == nil }

// note disables a table after an error with a lasting reason: it is missing, it lacks a
// column, the account lacks rights. nil enables it.
func (j *Journal) note(table string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err == nil:
		delete(j.off, table)
	case Lasting(err):
		told := j.off[table] != nil && j.off[table].told
		j.off[table] = &refusal{err, time.Now(), told}
	}
}

// Refused reports whether err, from another package's statement, means that a table is
// unusable, and then disables it.
func (j *Journal) Refused(table string, err error) bool {
	if err == nil || !Lasting(err) {
		return false
	}
	j.note(table, err)
	return true
}

// Lasting reports whether err means that a table is missing, has another form or may not be
// used. It ignores SQLSTATE 42000: MySQL uses it for a missing right, but also for too many
// connections or prepared statements (1203, 1226, 1461).
func Lasting(err error) bool {
	code := dberr.Of(err)
	switch code.State {
	case "42S02", "42S22", "42P01", "42703":
		return true
	}
	switch code.Number {
	case 1146, 1054: // MySQL's
		return true
	}
	return code.Denied() || code.Number == 1 && code.State == "" // SQLITE_ERROR: no such table, no such column
}

// exec runs a statement about a table and records whether the table is usable.
func (j *Journal) exec(ctx context.Context, table, statement string, args ...any) (int64, error) {
	if err := j.usable(table); err != nil {
		return 0, err
	}
	result, err := j.db.ExecContext(ctx, j.Text(statement), args...)
	j.note(table, err)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// onConflict ends an INSERT that sets columns of an existing row. set does so for a
// {column}, with its {new} value.
func (j *Journal) onConflict(key, set string, columns []string) string {
	on := ` ON CONFLICT (` + key + `) DO UPDATE SET `
	on = j.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE `, Postgres: on, SQLite: on})
	set = strings.ReplaceAll(set, "{new}", j.Pick(sqltext.Texts{MySQL: "VALUES({column})", Postgres: "EXCLUDED.{column}", SQLite: "EXCLUDED.{column}"}))
	for i, column := range columns {
		if i > 0 {
			on += ", "
		}
		on += strings.ReplaceAll(set, "{column}", column)
	}
	return on
}

// each runs a query and calls scan for each row.
func (j *Journal) each(ctx context.Context, table string, scan func(*sql.Rows) error, statement string, args ...any) error {
	if err := j.usable(table); err != nil {
		return err
	}
	rows, err := j.db.QueryContext(ctx, j.Text(statement), args...)
	j.note(table, err)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Close writes the remaining counts, for at most a second.
func (j *Journal) Close() {
	if j == nil || j.closed.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = j.Flush(ctx)
}

// NewID returns the id of a record: later ones sort after it.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// text makes s storable: valid UTF-8 without NUL, of at most the given size in bytes.
func text(s string, most int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

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

// EndStatement records the ends of units: a discard must be recorded in its own transaction.
func (j *Journal) EndStatement(end End, unitIDs []string) (statement string, args []any, err error) {
	if err := j.usable(Attempts); err != nil {
		return "", nil, err
	}
	for _, id := range unitIDs {
		args = append(args, id, NewID())
	}
	return j.Text(`INSERT INTO bed_attempt (unit_id, id, creation_time, origin, class, error) VALUES ` +
		sqltext.List(len(unitIDs), `(?, ?, {now}, '`+byOperator+`', '`+string(end)+`', '')`, `, `)), args, nil
}

// AddDelivered records delivered units before their removal. As with AddAttempts, no outcome
// may depend on it.
func (j *Journal) AddDelivered(ctx context.Context, unitIDs []string) error {
	if j == nil || len(unitIDs) == 0 || !j.on(Attempts) {
		return nil
	}
	var errs []error
	for portion := range slices.Chunk(unitIDs, 256) {
		statement, args, err := j.EndStatement(Delivered, portion)
		if err == nil {
			_, err = j.exec(ctx, Attempts, statement, args...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
func (j *Journal) ReadAttempts(ctx context.Context, unitID string, most int) (all []Attempt, err error) {
	err = j.each(ctx, Attempts, func(rows *sql.Rows) error {
		var a Attempt
		var ms int64
		if err := rows.Scan(&ms, &a.Origin, &a.Class, &a.Err); err != nil {
			return err
		}
		a.At = time.UnixMilli(ms).UTC()
		all = append(all, a)
		return nil
	}, `SELECT creation_time, origin, class, error FROM bed_attempt WHERE unit_id = ? AND origin <> '`+byOperator+`' ORDER BY id DESC LIMIT ?`, unitID, most)
	return all, err
}

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
	if err := j.usable(Audit); err != nil {
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
	_, err = j.db.ExecContext(ctx, statement, args...)
	j.note(Audit, err)
	return err
}

// ReadAudit returns the records after the one with the id after, the newest first.
func (j *Journal) ReadAudit(ctx context.Context, after string, most int) (all []Record, err error) {
	where, args := ``, []any{}
	if after != "" {
		where, args = ` WHERE id < ?`, append(args, after)
	}
	err = j.each(ctx, Audit, func(rows *sql.Rows) error {
		var r Record
		var ms int64
		if err := rows.Scan(&r.ID, &ms, &r.Who, &r.Action, &r.What, &r.Count, &r.Reason); err != nil {
			return err
		}
		r.Time = time.UnixMilli(ms).UTC()
		all = append(all, r)
		return nil
	}, `SELECT id, creation_time, who, action, what, units, reason FROM bed_audit`+where+` ORDER BY id DESC LIMIT ?`, append(args, most)...)
	return all, err
}
