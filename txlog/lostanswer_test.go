package txlog_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"modernc.org/sqlite"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// lossy is SQLite behind a line that can break between running a statement and answering it.
type lossy struct {
	driver.Connector
	lose  *atomic.Int32
	cause error
}

func (l lossy) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := l.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lossyConn{sqliteConn: conn.(sqliteConn), lossy: l}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
	driver.ConnPrepareContext
}

type lossyConn struct {
	sqliteConn
	lossy lossy
	inTx  bool
}

// BeginTx begins a transaction with an unreliable answer to COMMIT only. Before COMMIT no changes
// take effect anyway.
func (c *lossyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return lossyTx{tx, c}, nil
}

type lossyTx struct {
	driver.Tx
	conn *lossyConn
}

func (t lossyTx) Commit() error {
	t.conn.inTx = false
	err := t.Tx.Commit()
	if err == nil && t.conn.lossy.lose.Add(-1) >= 0 {
		return t.conn.lossy.cause
	}
	return err
}

func (t lossyTx) Rollback() error {
	t.conn.inTx = false
	return t.Tx.Rollback()
}

func (c *lossyConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	stmt, err := c.sqliteConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return lossyStmt{stmt.(sqliteStmt), c}, nil
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type lossyStmt struct {
	sqliteStmt
	conn *lossyConn
}

func (s lossyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	result, err := s.sqliteStmt.ExecContext(ctx, args)
	if err == nil && !s.conn.inTx && s.conn.lossy.lose.Add(-1) >= 0 {
		return nil, s.conn.lossy.cause
	}
	return result, err
}

type sqliteDSN string

func (dsn sqliteDSN) Connect(context.Context) (driver.Conn, error) {
	return (&sqlite.Driver{}).Open(string(dsn))
}
func (dsn sqliteDSN) Driver() driver.Driver { return &sqlite.Driver{} }

// openLossy opens a log that loses the answers to the next *lose statements.
func openLossy(t *testing.T, name string, cause error) (s *txlog.SQLStorage, lose *atomic.Int32, direct *sql.DB) {
	t.Helper()
	lose = new(atomic.Int32)
	logdb.Register(name, logdb.Backend{Flavor: sqltext.SQLite, Connector: func(dsn string, _ logdb.Before) (driver.Connector, error) {
		return lossy{sqliteDSN(dsn), lose, cause}, nil
	}})
	db := testdb.SQLite(t)
	s, err := txlog.Open(t.Context(), name, db.DSN, txlog.WithGrace(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, lose, db.Open(t)
}

func TestUnansweredLogWriteIsRepeatedUnderItsID(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{
		"lossy-reset": errors.New("connection reset by peer"), "lossy-bad": driver.ErrBadConn, "lossy-deadline": context.DeadlineExceeded,
	} {
		s, lose, direct := openLossy(t, name, cause)
		for _, u := range []*entry.Unit{unit("UPDATE a"), unit("UPDATE a", "UPDATE b", "UPDATE c")} {
			lose.Store(4)
			if err := s.Add(t.Context(), time.Minute, u); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if n := rowCount(t, direct); n != len(u.Statements) {
				t.Errorf("%s: %d rows, want %d", name, n, len(u.Statements))
			}
			lose.Store(1)
			if _, err := s.Renew(t.Context(), time.Minute, u); err != nil && !errors.Is(err, cause) {
				t.Errorf("%s: %v", name, err)
			}
			lose.Store(4)
			if err := s.Remove(t.Context(), u); err != nil && !errors.Is(cause, driver.ErrBadConn) {
				t.Errorf("%s: the removal whose answer was lost: %v", name, err)
			}
			if n := rowCount(t, direct); n != 0 {
				t.Errorf("%s: %d rows were left", name, n)
			}
		}
	}
}

func TestUnansweredReleaseIsRepeatedAndCountsOnce(t *testing.T) {
	t.Parallel()
	s, lose, _ := openLossy(t, "lossy-release", errors.New("broken pipe"))
	u := unit("UPDATE a")
	if err := s.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	lose.Store(2)
	if err := s.Release(t.Context(), u, entry.Verdict{CountTry: true}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), u.ID)
	if err != nil || got.Tries != 1 || got.Leased {
		t.Errorf("got %+v, %v", got, err)
	}
}

// untilLost loses every answer from now on, and returns the context of a caller who leaves at the
// first lost one.
func untilLost(t *testing.T, lose *atomic.Int32) context.Context {
	const all = 1 << 30
	lose.Store(all)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for lose.Load() == all && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	return ctx
}

func TestUnknownLogWriteIsDoubtfulAfterContextEnd(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection reset by peer")
	s, lose, direct := openLossy(t, "lossy-forever", cause)
	ctx := untilLost(t, lose)
	start := time.Now()
	err := s.Add(ctx, time.Hour, unit("UPDATE a"))
	if !errors.Is(err, txlog.ErrInDoubt) || !errors.Is(err, cause) {
		t.Errorf("got error %v, want ErrInDoubt with its cause", err)
	}
	if d := time.Since(start); d > repetitions {
		t.Errorf("it took %v", d)
	}
	if n := rowCount(t, direct); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestRemovalThatStaysUnknownIsInDoubt(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection reset by peer")
	s, lose, direct := openLossy(t, "lossy-removal", cause)
	u := unit("UPDATE a")
	if err := s.Add(t.Context(), time.Hour, u); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(untilLost(t, lose), u); !errors.Is(err, txlog.ErrInDoubt) || !errors.Is(err, cause) {
		t.Errorf("got error %v, want ErrInDoubt with its cause", err)
	}
	if n := rowCount(t, direct); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestLogIsNotWrittenAgainAfterItsLease(t *testing.T) {
	t.Parallel()
	s, lose, _ := openLossy(t, "lossy-lease", errors.New("connection reset by peer"))
	lose.Store(1 << 30)
	start := time.Now()
	if err := s.Add(t.Context(), 2*time.Second, unit("UPDATE a")); !errors.Is(err, txlog.ErrInDoubt) {
		t.Errorf("got error %v, want ErrInDoubt", err)
	}
	if d := time.Since(start); d > repetitions {
		t.Errorf("it took %v", d)
	}
}

// asleep is a deadline an hour ahead by the monotonic clock and an hour ago by the wall clock, as
// after a machine's sleep. The only way to make one is to change the seconds in the first word of a
// time.
func asleep() time.Time {
	t := time.Now().Add(time.Hour)
	*(*uint64)(unsafe.Pointer(&t)) -= 2 * 3600 << 30
	return t
}

// The lease is over. Changes to the unit since then are not its owner's.
func TestOwnerAfterASuspendClaimsNoOthersWork(t *testing.T) {
	t.Parallel()
	s, lose, direct := openLossy(t, "lossy-asleep", errors.New("connection reset by peer"))
	for what, f := range map[string]func(*entry.Unit) error{
		"removed":  func(u *entry.Unit) error { return s.Remove(t.Context(), u) },
		"released": func(u *entry.Unit) error { return s.Release(t.Context(), u, entry.Verdict{}) },
	} {
		u := unit("UPDATE a")
		if err := s.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		if u.Lease.Deadline = asleep(); !time.Now().Before(u.Lease.Deadline) || !time.Now().Round(0).After(u.Lease.Deadline.Round(0)) {
			t.Fatalf("the deadline %v is not that of a machine that slept", u.Lease.Deadline)
		}
		if _, err := direct.Exec("DELETE FROM transaction_log"); err != nil { // a job delivered it
			t.Fatal(err)
		}
		lose.Store(1)
		if err := f(u); !errors.Is(err, txlog.ErrLeaseLost) {
			t.Errorf("%s: got error %v, want ErrLeaseLost", what, err)
		}
	}
}

// Otherwise entries delivered and removed by others meanwhile would come back.
func TestLogIsNotWrittenAgainAfterASuspend(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		if err := s.AddAgain(t.Context(), unit("UPDATE a"), asleep()); err == nil {
			t.Error("it was written")
		}
		if n := rowCount(t, db.Open(t)); n != 0 {
			t.Errorf("%d rows, want none", n)
		}
		if err := s.AddAgain(t.Context(), unit("UPDATE a"), time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
	})
}

func TestLostAnswerOnARealServerIsRecovered(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		s := open(t, db.Via(p.Addr()), txlog.WithGrace(50*time.Millisecond))
		direct := db.Open(t)

		warm, u := unit("UPDATE a"), unit("UPDATE a")
		if err := s.Add(t.Context(), time.Minute, warm); err != nil {
			t.Fatal(err)
		}
		struck := p.CutAfter(execute)
		if err := s.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		testproxy.Await(t, struck)
		if n := rowCount(t, direct); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
		if err := s.Remove(t.Context(), warm); err != nil {
			t.Fatal(err)
		}
		struck = p.CutAfter(execute)
		if err := s.Remove(t.Context(), u); err != nil {
			t.Errorf("the removal whose answer was lost: %v", err)
		}
		testproxy.Await(t, struck)
		if n := rowCount(t, direct); n != 0 {
			t.Errorf("%d rows were left", n)
		}

		// The server stays away after carrying it out.
		struck = p.CutAfter(execute)
		p.Refuse()
		if err := s.Add(testproxy.Until(t, struck, 100*time.Millisecond), time.Minute, unit("UPDATE a")); !errors.Is(err, txlog.ErrInDoubt) {
			t.Errorf("got error %v, want ErrInDoubt", err)
		}
		testproxy.Await(t, struck)
		// No message can be sent any more, so there is no doubt.
		if err := s.Add(t.Context(), time.Minute, unit("UPDATE a")); err == nil || errors.Is(err, txlog.ErrInDoubt) {
			t.Errorf("got error %v, want a definite one", err)
		}
	})
}

// One INSERT is enough for it, however large it is, and may be repeated.
func TestLostAnswerToALargeStatementIsRecovered(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		s := open(t, db.Via(p.Addr()))
		u := unit("UPDATE a SET b = '" + strings.Repeat("x", 5<<20) + "'")
		struck := p.CutAfter(execute)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // without an end it is not repeated for that long
		defer cancel()
		if err := s.Add(ctx, time.Hour, u); err != nil {
			t.Fatal(err)
		}
		testproxy.Await(t, struck)
		if n := rowCount(t, db.Open(t)); n != 1 || !u.AddRepeated {
			t.Errorf("%d rows, repeated: %v; want 1 that was repeated", n, u.AddRepeated)
		}
	})
}
