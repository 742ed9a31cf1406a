package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
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
		tell := r != nil && !r.told && !(slices.Contains(needless, table) && dberr.Of(r.err).Denied())
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
// operator may have made the table, or granted a right. earlier is the refusal known so far.
func (j *Journal) usable(table string) (earlier *refusal, err error) {
	if j == nil {
		return nil, fmt.Errorf("%s: %w: this log keeps none", table, ErrOff)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r, off := j.off[table]
	if off && time.Since(r.at) < j.again {
		return nil, fmt.Errorf("%s: %w: %w", table, ErrOff, r.err)
	}
	return r, nil
}

// on reports whether a table is usable.
func (j *Journal) on(table string) bool {
	_, err := j.usable(table)
	return err == nil
}

// note disables a table after an error with a lasting reason: it is missing, it lacks a
// column, the account lacks rights. nil enables it, unless another use has met a refusal
// since this one began.
func (j *Journal) note(table string, earlier *refusal, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err == nil && j.off[table] == earlier:
		delete(j.off, table)
	case Lasting(err):
		told := j.off[table] != nil && j.off[table].told
		j.off[table] = &refusal{err, time.Now(), told}
	}
}

// Lasting reports whether err means that a table is missing, has another form or may not be
// used. It ignores SQLSTATE 42000: MySQL uses it for a missing right, but also for too many
// connections or prepared statements (1203, 1226, 1461).
func Lasting(err error) bool {
	code := dberr.Of(err)
	return code.Among("42S02 42S22 42P01 42703", 1146, 1054) || // the numbers are MySQL's
		code.Denied() || code.Number == 1 && code.State == "" // SQLITE_ERROR: no such table, no such column
}

// exec runs a statement about a table and records whether the table is usable.
func (j *Journal) exec(ctx context.Context, table, statement string, args ...any) (int64, error) {
	var result sql.Result
	if err := j.Use(table, func() (err error) {
		result, err = j.db.ExecContext(ctx, j.Text(statement), args...)
		return err
	}); err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Use runs f, a statement about a usable table, and records whether the table is usable.
func (j *Journal) Use(table string, f func() error) error {
	earlier, err := j.usable(table)
	if err == nil {
		err = f()
		j.note(table, earlier, err)
	}
	return err
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
	var rows *sql.Rows
	err := j.Use(table, func() (err error) {
		rows, err = j.db.QueryContext(ctx, j.Text(statement), args...)
		return err
	})
	return tables.Each(rows, err, scan)
}

// list runs a query and returns its rows, which scan reads.
func list[T any](ctx context.Context, j *Journal, table string, scan func(*sql.Rows, *T) error, statement string, args ...any) (all []T, err error) {
	err = j.each(ctx, table, func(rows *sql.Rows) error {
		var one T
		err := scan(rows, &one)
		if err == nil {
			all = append(all, one)
		}
		return err
	}, statement, args...)
	return all, err
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

const (
	// flushEvery is how long counts wait before they are written.
	flushEvery = 5 * time.Second
	// flushFor bounds one write.
	flushFor = 5 * time.Second
	// flushRows is the maximum number of data sources in one statement.
	flushRows = 128
)

// Tally counts the writes for one data source. A nil Tally does not count. It is safe for
// concurrent use and costs some ten nanoseconds.
type Tally struct {
	journal    *Journal
	dataSource string
}

// counts holds the unwritten counts by data source.
type counts struct {
	off bool

	mu     sync.Mutex
	counts map[string]Counts
	// timer triggers the write; nil if no write is due.
	timer *time.Timer
	// writing is held during a write.
	writing sync.Mutex
}

// Tally returns the counter of a data source; nil if no activity is kept.
func (j *Journal) Tally(dataSource string) *Tally {
	if j == nil || j.counts.off || !j.on(Activity) {
		return nil
	}
	return &Tally{j, dataSource}
}

// Count counts n writes. They are written within a few seconds.
func (t *Tally) Count(o Outcome, n int) {
	if t == nil {
		return
	}
	j := t.journal
	c := &j.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]Counts{}
	}
	sum := c.counts[t.dataSource]
	sum[o] += int64(n)
	c.counts[t.dataSource] = sum
	if c.timer == nil && !j.closed.Load() {
		c.timer = time.AfterFunc(flushEvery, func() {
			ctx, cancel := context.WithTimeout(context.Background(), flushFor)
			defer cancel()
			_ = j.Flush(ctx)
		})
	}
}

// Flush writes the counts to the current minute of the log's clock. It restores the counts
// of a write that the database refused for a temporary reason. After a missing answer it
// drops them, so that no write is counted twice.
func (j *Journal) Flush(ctx context.Context) error {
	if j == nil {
		return nil
	}
	c := &j.counts
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	all := c.counts
	c.counts, c.timer = nil, nil
	c.mu.Unlock()
	// Sorted by name: concurrent processes then take their locks in the same order.
	for names := range slices.Chunk(slices.Sorted(maps.Keys(all)), flushRows) {
		args := make([]any, 0, 7*len(names))
		for _, name := range names {
			args = append(args, name)
			for _, n := range all[name] {
				args = append(args, n)
			}
		}
		if _, err := j.exec(ctx, Activity, `INSERT INTO bed_activity (minute, data_source, `+strings.Join(outcomeColumns[:], ", ")+`) VALUES `+
			sqltext.List(len(names), `(`+j.Pick(sqltext.Texts{MySQL: `{now} DIV 60000`, Postgres: `{now} / 60000`, SQLite: `{now} / 60000`})+` * 60000, ?, ?, ?, ?, ?, ?, ?)`, `, `)+
			j.onConflict("minute, data_source", "{column} = bed_activity.{column} + {new}", outcomeColumns[:]), args...); err != nil {
			if j.on(Activity) && dberr.Of(err).Known() {
				for name, counts := range all {
					for o, n := range counts {
						(&Tally{j, name}).Count(Outcome(o), int(n))
					}
				}
			}
			return err
		}
		for _, name := range names {
			delete(all, name)
		}
	}
	return nil
}
