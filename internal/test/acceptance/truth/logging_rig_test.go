package truth

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// fate is what happens to an entry, or of a write.
type fate string

// The fates of an entry.
const (
	entryWritten fate = "written"
	unwritable   fate = "cannot be written"
	doubtThere   fate = "in doubt, and there"
	doubtMissing fate = "in doubt, and not there"
	doubtLate    fate = "in doubt, and comes late"
)

// The fates of a write.
const (
	applied        fate = "applied"
	refusedByTable fate = "refused"
	notSent        fate = "not applied"
	lostApplied    fate = "unknown, and applied"
	lostNotApplied fate = "unknown, and not applied"
	// lostAway: unknown and not applied, and then the target is out of reach.
	lostAway fate = "unknown, and the target cannot be asked"
)

// fatedStorage is a log that gives entries the fates chosen by a test.
type fatedStorage struct {
	txlog.Storage

	mu    sync.Mutex
	entry fate
	// adds counts the writes, and last is the unit of the newest.
	adds int
	last entry.Unit
	// before, if not nil, is called before a write with its context.
	before func(ctx context.Context)
}

// begin sets the fate of the next entries.
func (s *fatedStorage) begin(entry fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entry, s.adds = entry, 0
}

func (s *fatedStorage) added() (n int, last entry.Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.adds, s.last
}

func (s *fatedStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	s.mu.Lock()
	fated, before := s.entry, s.before
	s.adds++
	s.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	var err error
	switch fated {
	case unwritable:
		return rig.ErrLogDown
	case doubtMissing, doubtLate:
		for _, u := range units {
			u.Lease.Token = entry.NewID()
		}
		err = fmt.Errorf("%w: %w", txlog.ErrInDoubt, rig.ErrLogDown)
	case doubtThere:
		if err = s.Storage.Add(ctx, lease, units...); err == nil {
			err = fmt.Errorf("%w: %w", txlog.ErrInDoubt, rig.ErrLogDown)
		}
	default:
		err = s.Storage.Add(ctx, lease, units...)
	}
	s.mu.Lock()
	s.last = *units[0]
	s.mu.Unlock()
	return err
}

// fatedRig is a rig with a log and a target controlled by the test.
type fatedRig struct {
	*rig.Rig
	store *fatedStorage
	steps *rig.Steps

	mu sync.Mutex
	// point is a part of the name of the committing call. The next such call breaks.
	point  string
	breaks rig.Breakage
	away   bool
	struck bool
	// broken, if not nil, is called when the call breaks.
	broken func()
}

func newFatedRig(t *testing.T, db testdb.DB, change ...func(*bedsql.Config)) *fatedRig {
	t.Helper()
	f := &fatedRig{steps: &rig.Steps{}}
	f.steps.Breaks = f.breakage
	f.Rig = rig.New(t, rig.Enforced(db), append(change, func(c *bedsql.Config) {
		f.store = &fatedStorage{Storage: c.Storage}
		c.Storage = f.store
	})...)
	name := fmt.Sprintf("fated-%s-%d", db.Driver, rig.Registered.Add(1))
	parse := func(dsn string) (delivery.Target, error) {
		t, err := rig.Target(db.Driver)(dsn)
		return rig.CrashTarget(t, f.steps, "A"), err
	}
	if err := bedsql.RegisterDriver(name, parse, f.Cfg); err != nil {
		t.Fatal(err)
	}
	pool, err := sql.Open(name, f.DB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(testdb.MaxOpenConns)
	t.Cleanup(func() { _ = pool.Close() })
	f.Wrapped = pool
	return f
}

// begin sets the fates of the next entry and write.
func (f *fatedRig) begin(entry, write fate, point string) {
	f.store.begin(entry)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.point, f.away, f.struck, f.breaks = point, false, false, rig.Breakage{}
	switch write {
	case notSent:
		if f.breaks.Err = driver.ErrBadConn; f.DB.Driver == testdb.DriverPostgres {
			f.breaks.Err = neverSentError{}
		}
	case lostApplied:
		f.breaks = rig.Breakage{Err: io.ErrUnexpectedEOF, Made: true}
	case lostNotApplied, lostAway:
		f.breaks.Err, f.away = io.ErrUnexpectedEOF, write == lostAway
	}
}

// neverSentError imitates pgconn's errors for unsent statements.
type neverSentError struct{}

func (neverSentError) Error() string { return "the connection was gone before" }

func (neverSentError) SafeToRetry() bool { return true }

// answers has the next call at the point answered with err instead of made.
func (f *fatedRig) answers(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks = rig.Breakage{Err: err, Alive: true}
}

// whenItBreaks has do called when the call breaks.
func (f *fatedRig) whenItBreaks(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = do
}

// end lets all go well again.
func (f *fatedRig) end() {
	f.store.begin(entryWritten)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks, f.away, f.broken = rig.Breakage{}, false, nil
}

func (f *fatedRig) breakage(name string) rig.Breakage {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.breaks.Err == nil:
	case !f.struck && strings.Contains(name, f.point):
		f.struck = true
		if f.broken != nil {
			f.broken()
		}
		return f.breaks
	case f.struck && f.away:
		return rig.Breakage{Err: driver.ErrBadConn}
	}
	return rig.Breakage{}
}

// loggedWork is a kind of write.
type loggedWork struct {
	name string
	// onlyOnce: it is exactly once by itself.
	onlyOnce bool
	// commit is part of the name of the call that commits it at least once, and
	// commitOnce exactly once.
	commit, commitOnce string
	// do works on a row. With refused, the row's table refuses it.
	do func(f *fatedRig, ctx context.Context, row int, refused bool) error
	// effect counts how often it was applied, and again is what one more delivery
	// makes of it at least once.
	effect func(f *fatedRig, row int) int
	again  int
}

func onAccount(f *fatedRig, row int) int {
	return f.Count(fmt.Sprintf("SELECT balance FROM account WHERE id = %d", row))
}

func (f *fatedRig) table(refused bool) string {
	if refused {
		return "UPDATE account SET nosuch = balance + 1 WHERE id = "
	}
	return "UPDATE account SET balance = balance + 1 WHERE id = "
}

var loggedWorks = []loggedWork{
	{name: "Exec", commit: "UPDATE account", commitOnce: "COMMIT", effect: onAccount, again: 2,
		do: func(f *fatedRig, ctx context.Context, row int, refused bool) error {
			_, err := f.Wrapped.ExecContext(ctx, f.table(refused)+fmt.Sprint(row))
			return err
		}},
	{name: "prepared", commit: "UPDATE account", commitOnce: "COMMIT", effect: onAccount, again: 2,
		do: func(f *fatedRig, ctx context.Context, row int, refused bool) error {
			if refused { // by Exec: SQLite and PostgreSQL would refuse it at Prepare
				_, err := f.Wrapped.ExecContext(ctx, f.table(refused)+fmt.Sprint(row))
				return err
			}
			st, err := f.Wrapped.PrepareContext(ctx, f.Q(f.table(false)+"?"))
			if err != nil {
				return err
			}
			defer func() { _ = st.Close() }()
			_, err = st.ExecContext(ctx, row)
			return err
		}},
	{name: "RETURNING", commit: "INSERT INTO note", commitOnce: "COMMIT", again: 1,
		effect: func(f *fatedRig, row int) int {
			return f.Count(fmt.Sprintf("SELECT count(*) FROM note WHERE id = %d", row))
		},
		do: func(f *fatedRig, ctx context.Context, row int, refused bool) error {
			if refused {
				row = 0 // is there
			}
			var id int
			err := f.Wrapped.QueryRowContext(ctx, fmt.Sprintf("INSERT INTO note VALUES (%d) RETURNING id", row)).Scan(&id)
			if errors.Is(err, bedsql.ErrRowsUnknown) {
				return nil
			}
			return err
		}},
	{name: "under a key", onlyOnce: true, commitOnce: "COMMIT", effect: onAccount,
		do: func(f *fatedRig, ctx context.Context, row int, refused bool) error {
			ctx, _ = bedsql.WithIdempotencyKey(ctx, fmt.Sprint("request ", row))
			_, err := f.Wrapped.ExecContext(ctx, f.table(refused)+fmt.Sprint(row))
			return err
		}},
	{name: "local transaction", commit: "COMMIT", commitOnce: "COMMIT", effect: onAccount, again: 4, do: twoInTransaction},
	{name: "local transaction under a key", onlyOnce: true, commitOnce: "COMMIT", effect: onAccount,
		do: func(f *fatedRig, ctx context.Context, row int, refused bool) error {
			ctx, _ = bedsql.WithIdempotencyKey(ctx, fmt.Sprint("request ", row))
			return twoInTransaction(f, ctx, row, refused)
		}},
}

// twoInTransaction applies two increments; a half of them would be one.
func twoInTransaction(f *fatedRig, ctx context.Context, row int, refused bool) error { //nolint:revive // as above
	tx, err := f.Wrapped.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for range 2 {
		if _, err := tx.ExecContext(ctx, f.table(false)+fmt.Sprint(row)); err != nil {
			return err
		}
	}
	if refused {
		if f.DB.Driver == testdb.DriverMySQL { // knows no constraint that waits for COMMIT
			f.answers(&mysql.MySQLError{Number: 1213, SQLState: [5]byte{'4', '0', '0', '0', '1'}, Message: "Deadlock found"})
		} else if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO late VALUES (%d, 99999)", row)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// once is the effect of the work applied once.
func (w *loggedWork) once() int {
	if strings.HasPrefix(w.name, "local transaction") {
		return 2
	}
	return 1
}
