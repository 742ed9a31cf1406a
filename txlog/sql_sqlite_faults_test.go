package txlog_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// addAndRemove lets the callers' adds and removals leave in one write, and runs meanwhile beside it.
func addAndRemove(t *testing.T, s *txlog.SQLStorage, adds, removals int, add, remove func(i int) error, meanwhile ...func()) (added, removed []error) {
	t.Helper()
	waitRemovals := together(t, s.Removing(), removals, remove)
	waitAdds := together(t, s.Adding(), adds, add)
	for _, f := range meanwhile {
		go f()
	}
	done := make(chan []error, 1)
	go func() { done <- waitRemovals() }()
	added = waitAdds()
	return added, <-done
}

// lockLog takes the write lock of the log, as another process would.
func lockLog(t *testing.T, db testdb.DB) (release func()) {
	t.Helper()
	conn, err := db.Open(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
	}
}

func TestSQLiteRefusalFailsOnlyItsOwnRecord(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	s := open(t, db)
	old, units := someUnits(7), someUnits(9)
	mustAdd(t, s, old...)
	refuse(t, db, "refused")
	units[4].DataSource = "refused"
	if _, err := db.Open(t).Exec("CREATE TRIGGER kept BEFORE DELETE ON transaction_log WHEN OLD.id = '" + old[3].ID + "' BEGIN SELECT RAISE(ABORT, 'kept'); END"); err != nil {
		t.Fatal(err)
	}
	stale := *old[5]
	stale.Lease.Token = entry.NewID()
	ends := slices.Clone(old)
	ends[5] = &stale
	added, removed := addAndRemove(t, s, len(units), len(old),
		func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) },
		func(i int) error { return s.Remove(t.Context(), ends[i]) })
	for i, err := range added {
		if (i == 4) != (err != nil) || errors.Is(err, txlog.ErrInDoubt) {
			t.Errorf("add %d: got error %v", i, err)
		}
	}
	for i, err := range removed {
		if (i == 3 || i == 5) != (err != nil) || (i == 5) != errors.Is(err, txlog.ErrLeaseLost) {
			t.Errorf("removal %d: got error %v", i, err)
		}
	}
	gone := missing(t, s, append(old, units...)...)
	if len(gone) != 6 || !gone[units[4].ID] || gone[old[3].ID] || gone[old[5].ID] {
		t.Errorf("missing are %v, want five removed units and the refused one", gone)
	}
}

func TestCallersWaitForAnotherProcessOnSQLite(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	s := open(t, db, txlog.WithGrace(time.Millisecond))
	old, units := someUnits(5), someUnits(5)
	mustAdd(t, s, old...)
	release := lockLog(t, db)
	leaving, leave := context.WithCancel(t.Context())
	defer leave()
	left, freed := make(chan struct{}), make(chan struct{})
	var free atomic.Bool
	added, removed := addAndRemove(t, s, len(units), len(old),
		func(i int) error {
			if i == 2 {
				defer close(left)
				return s.Add(leaving, time.Hour, units[i])
			}
			return s.Add(t.Context(), time.Hour, units[i])
		},
		func(i int) error { return s.Remove(t.Context(), old[i]) },
		func() {
			time.Sleep(200 * time.Millisecond) // so that they meet the lock
			leave()
			<-left
			time.Sleep(500 * time.Millisecond) // so that the others do again
			free.Store(true)
			release()
			close(freed)
		})
	if !free.Load() {
		t.Error("nobody waited for the lock")
	}
	<-freed
	for i, err := range added {
		if i != 2 && err != nil || i == 2 && !errors.Is(err, context.Canceled) {
			t.Errorf("add %d: got error %v", i, err)
		}
	}
	mustAll(t, removed)
	gone := missing(t, s, append(old, units...)...)
	// A write left by its caller is in doubt, or was not made.
	delete(gone, units[2].ID)
	if len(gone) != len(old) {
		t.Errorf("missing are %v, want the %d removed units", gone, len(old))
	}
	if err := added[2]; err != nil && !errors.Is(err, txlog.ErrInDoubt) && !missing(t, s, units[2])[units[2].ID] {
		t.Errorf("it was written although its caller got %v", err)
	}
}

func TestFullDiskRefusesSQLiteAddsButNotRemovals(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	s := open(t, db)
	old := someUnits(6)
	mustAdd(t, s, old...)
	s = open(t, withPragma(db, fmt.Sprintf("max_page_count(%d)", pages(t, db.Open(t))+1)))
	units := someUnits(8)
	for _, u := range units {
		u.Statements[0].SQL = "UPDATE " + strings.Repeat("a", 64<<10)
	}
	added, removed := addAndRemove(t, s, len(units), len(old),
		func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) },
		func(i int) error { return s.Remove(t.Context(), old[i]) })
	for i, err := range added {
		if err == nil || errors.Is(err, txlog.ErrInDoubt) || !strings.Contains(err.Error(), "full") {
			t.Errorf("add %d: got error %v", i, err)
		}
	}
	mustAll(t, removed)
	if gone := missing(t, s, append(old, units...)...); len(gone) != len(old)+len(units) {
		t.Errorf("%d units are gone, want all", len(gone))
	}
	mustAdd(t, s, unit("UPDATE a"))
}

// withPragma returns the same database with a pragma for each new connection.
func withPragma(db testdb.DB, pragma string) testdb.DB { return withSetting(db, "_pragma="+pragma) }

// withSetting returns the same database by a DSN with one more setting.
func withSetting(db testdb.DB, setting string) testdb.DB {
	separator := "?"
	if strings.Contains(db.DSN, "?") {
		separator = "&"
	}
	db.DSN += separator + setting
	return db
}

func pages(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("PRAGMA page_count").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestALogThatIsReadOnlyRefusesDefinitely(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	old := someUnits(3)
	mustAdd(t, open(t, db), old...)
	s := open(t, withPragma(db, "query_only(1)"), txlog.WithoutCreate())
	units := someUnits(4)
	added, removed := addAndRemove(t, s, len(units), len(old),
		func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) },
		func(i int) error { return s.Remove(t.Context(), old[i]) })
	for i, err := range append(added, removed...) {
		if err == nil || errors.Is(err, txlog.ErrInDoubt) || !strings.Contains(err.Error(), "readonly") {
			t.Errorf("write %d: got error %v", i, err)
		}
	}
	if gone := missing(t, s, append(old, units...)...); len(gone) != len(units) {
		t.Errorf("%d units are gone, want none of the old ones", len(gone))
	}
}

func TestQueuedSQLiteCallerGivingUpChangesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, testdb.SQLite(t))
	old, units := someUnits(4), someUnits(4)
	mustAdd(t, s, old...)
	leaving, leave := context.WithCancel(t.Context())
	ctx := func(i int) context.Context {
		if i == 1 {
			return leaving
		}
		return t.Context()
	}
	waitRemovals := together(t, s.Removing(), len(old), func(i int) error { return s.Remove(ctx(i), old[i]) })
	waitAdds := together(t, s.Adding(), len(units), func(i int) error { return s.Add(ctx(i), time.Hour, units[i]) })
	leave()
	s.Adding().Await(t, len(units)-1)
	s.Removing().Await(t, len(old)-1)
	removed := make(chan []error, 1)
	go func() { removed <- waitRemovals() }()
	for _, errs := range [][]error{waitAdds(), <-removed} {
		for i, err := range errs {
			if (i == 1) != errors.Is(err, context.Canceled) || i != 1 && err != nil || errors.Is(err, txlog.ErrInDoubt) {
				t.Errorf("caller %d: got error %v", i, err)
			}
		}
	}
	if gone := missing(t, s, append(old, units...)...); len(gone) != 4 || gone[old[1].ID] || !gone[units[1].ID] {
		t.Errorf("missing are %v", gone)
	}
}

func TestSharedSQLiteTransactionRecoversAddsAndRemovals(t *testing.T) {
	t.Parallel()
	s, lose, direct := openLossy(t, "lossy-shared", errors.New("connection reset by peer"))
	old, units := someUnits(5), someUnits(4)
	mustAdd(t, s, old...)
	stale := *old[2]
	stale.Lease.Token = entry.NewID()
	ends := slices.Clone(old)
	ends[2] = &stale
	lose.Store(3)
	added, removed := addAndRemove(t, s, len(units), len(old),
		func(i int) error { return s.Add(t.Context(), time.Minute, units[i]) },
		func(i int) error { return s.Remove(t.Context(), ends[i]) })
	mustAll(t, added)
	for i, err := range removed {
		if (i == 2) != errors.Is(err, txlog.ErrLeaseLost) || i != 2 && err != nil {
			t.Errorf("removal %d: got error %v", i, err)
		}
	}
	for i, u := range units {
		if !u.AddRepeated {
			t.Errorf("unit %d does not say that it was written again", i)
		}
	}
	if gone := missing(t, s, append(old, units...)...); len(gone) != 4 || gone[stale.ID] || lose.Load() >= 0 {
		t.Errorf("missing are %v, want the removed units; %d answers were not lost", gone, lose.Load()+1)
	}
	if n := rowCount(t, direct); n != 3+1+2+3+1 {
		t.Errorf("%d rows, want each once", n)
	}
}

// noRollback is SQLite with transactions that stay open after a rollback.
type noRollback struct{ driver.Connector }

func (c noRollback) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return noRollbackConn{conn.(wholeSQLite)}, nil
}

type noRollbackConn struct{ wholeSQLite }

func (c noRollbackConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.wholeSQLite.BeginTx(ctx, opts)
	return noRollbackTx{tx}, err
}

type noRollbackTx struct{ driver.Tx }

func (noRollbackTx) Rollback() error { return errors.New("disk I/O error") }

func TestSQLiteConnectionWithOpenTransactionIsNotReused(t *testing.T) {
	t.Parallel()
	logdb.Register("no-rollback", logdb.Backend{Flavor: sqltext.SQLite, Connector: func(dsn string, _ logdb.Before) (driver.Connector, error) {
		return noRollback{sqliteDSN(dsn)}, nil
	}})
	db := testdb.SQLite(t)
	s, err := txlog.Open(t.Context(), "no-rollback", db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	refuse(t, db, "refused")
	units := someUnits(3)
	units[2].DataSource = "refused"
	errs := together(t, s.Adding(), 3, func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) })()
	mustAll(t, errs[:2])
	if errs[2] == nil {
		t.Error("the refused unit was added")
	}
	// As another process sees it.
	if n := rowCount(t, db.Open(t)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

func TestPartlyFailedRemovalRemovesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	s := open(t, db)
	units := []*entry.Unit{unit(slices.Repeat([]string{"UPDATE a"}, 200)...), unit(slices.Repeat([]string{"UPDATE b"}, 200)...)}
	mustAdd(t, s, units...)
	if _, err := db.Open(t).Exec("CREATE TRIGGER kept BEFORE DELETE ON transaction_log WHEN OLD.id = '" + units[1].ID + "' BEGIN SELECT RAISE(ABORT, 'kept'); END"); err != nil {
		t.Fatal(err)
	}
	err := s.Remove(t.Context(), units...)
	if gone := missing(t, s, units...); len(gone) != 0 || err == nil || errors.Is(err, txlog.ErrInDoubt) {
		t.Errorf("%d units are gone, the error is %v: want none, and a definite error", len(gone), err)
	}
	if err := s.Remove(t.Context(), units[0]); err != nil {
		t.Errorf("the removal of the other one: %v", err)
	}
}
