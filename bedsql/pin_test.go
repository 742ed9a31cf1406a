package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

func rawConn(t *testing.T, conn *sql.Conn) {
	t.Helper()
	err := conn.Raw(func(dc any) error {
		inner, err := dc.(*bedsql.Conn).Raw(context.Background())
		if err != nil {
			return err
		}
		if _, ok := inner.(*modernConn); !ok {
			t.Errorf("Raw gives a %T, want the driver's own connection", inner)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pinned is a connection of the pool after raw use.
func (s *set) pinned(t *testing.T) *sql.Conn {
	t.Helper()
	conn, err := s.pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	rawConn(t, conn)
	return conn
}

func TestRawGivesTheDriversConnectionAndPinsIt(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := context.Background()
	conn, err := s.pool.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, writeText); err != nil {
		t.Fatal(err)
	}
	rawConn(t, conn)
	for range 3 {
		if _, err := conn.ExecContext(ctx, writeText); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := conn.QueryContext(ctx, writeText+" RETURNING n")
	if err != nil {
		t.Fatal(err)
	}
	_ = rows.Close()
	if n := s.storage.logged(); n != 1 {
		t.Errorf("%d entries were written, want that of the write before Raw", n)
	}
	if n := s.cfg.Counters.PassedThrough.Load(); n != 4 {
		t.Errorf("%d writes counted as passed through, want 4", n)
	}
	if w := s.warnings(); len(w) != 1 {
		t.Errorf("%d warnings, want one for the connection: %q", len(w), w)
	}
	s.wantCalls(t, "dial", "exec", "exec", "exec", "exec", "query")
}

func TestOtherConnectionsOfThePoolAreNotPinned(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	s.pinned(t)
	if _, err := s.pool.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	if n := s.storage.logged(); n != 1 {
		t.Errorf("%d entries were written for a write on another connection, want 1", n)
	}
}

func TestRawDialsAndReturnsTheDialError(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	f := &fakeDriver{fail: func(call string) error {
		if call == "dial" {
			return refused
		}
		return nil
	}}
	s := newSet(t, f)
	conn, err := s.pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	err = conn.Raw(func(dc any) error {
		_, err := dc.(*bedsql.Conn).Raw(context.Background())
		return err
	})
	if err != refused {
		t.Errorf("Raw gives %v, want the dial's own error", err)
	}
}

func TestPinnedRefuseSendsNothing(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, func(c *bedsql.Config) { c.Pinned = bedsql.PinnedRefuse })
	ctx := context.Background()
	conn := s.pinned(t)
	s.f.recorded()
	if _, err := conn.ExecContext(ctx, writeText); !errors.Is(err, bedsql.ErrPinned) {
		t.Errorf("a write on a pinned connection: %v, want ErrPinned", err)
	}
	if _, err := conn.QueryContext(ctx, writeText+" RETURNING n"); !errors.Is(err, bedsql.ErrPinned) {
		t.Errorf("a write through Query: %v, want ErrPinned", err)
	}
	if _, err := s.pool.Exec("UPDATE t SET n = 1; UPDATE t SET n = 2"); !errors.Is(err, bedsql.ErrPinned) {
		t.Errorf("several statements: %v, want ErrPinned", err)
	}
	s.wantCalls(t, "dial") // of the pool's second connection
	if _, err := conn.ExecContext(bedsql.Unlogged(ctx), writeText); err != nil {
		t.Errorf("a write under Unlogged: %v", err)
	}
	if err := conn.QueryRowContext(ctx, readText).Scan(new(int)); err != nil {
		t.Errorf("a query: %v", err)
	}
	if s.storage.logged() != 0 || s.cfg.Counters.PassedThrough.Load() != 0 {
		t.Errorf("%d entries, %d counted as passed through; want none", s.storage.logged(), s.cfg.Counters.PassedThrough.Load())
	}
}

func TestTransactionsOfAPinnedConnectionRunUnlogged(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := context.Background()
	conn := s.pinned(t)
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := s.storage.logged(); n != 0 {
		t.Errorf("%d entries were written", n)
	}
	if n := s.cfg.Counters.PassedThrough.Load(); n != 1 {
		t.Errorf("%d writes counted as passed through, want 1", n)
	}
}

// The end of a context may have stopped the driver's wait for BEGIN, and not BEGIN.
func TestBeginThatWasNotAnsweredIsRolledBack(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{fail: func(call string) error {
		if strings.HasPrefix(call, "begin") {
			return context.DeadlineExceeded
		}
		return nil
	}})
	if _, err := s.pool.Begin(); err != context.DeadlineExceeded {
		t.Errorf("BeginTx: %v, want the driver's own error", err)
	}
	s.wantCalls(t, "dial", "begin tx 0 false", "exec", "close conn")
}

func TestSkippedWritesAreOnlyCounted(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := bedsql.Unlogged(context.Background())
	if _, err := s.pool.ExecContext(ctx, writeText); err != nil {
		t.Fatal(err)
	}
	if n := s.cfg.Counters.Unlogged.Load(); n != 1 {
		t.Errorf("%d writes counted as skipped, want 1", n)
	}
	if s.storage.logged() != 0 || len(s.warnings()) != 0 {
		t.Errorf("%d entries, warnings %q; want none", s.storage.logged(), s.warnings())
	}
}

func TestDeadConnectionIsNeverRedialledInPlace(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset by peer")
	f := &fakeDriver{}
	fail := true
	f.fail = func(call string) error {
		if call == "exec" && fail {
			fail = false
			return broken
		}
		return nil
	}
	s := newSet(t, f)
	conn := s.wrappedConn(t)
	if _, err := conn.(driver.ExecerContext).ExecContext(context.Background(), writeText, nil); err != nil {
		t.Fatalf("the retry on another connection: %v", err)
	}
	s.wantCalls(t, "dial", "exec", "dial", "exec")
	if conn.(driver.Validator).IsValid() {
		t.Error("the connection whose answer was lost calls itself valid")
	}
	if err := conn.(driver.SessionResetter).ResetSession(context.Background()); !errors.Is(err, driver.ErrBadConn) {
		t.Errorf("ResetSession of it: %v, want ErrBadConn", err)
	}
	// A write after this goes through the other connection.
	if _, err := conn.(driver.ExecerContext).ExecContext(context.Background(), writeText, nil); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "ping", "exec")
	if n := s.storage.logged(); n != 2 {
		t.Errorf("%d entries were written for two writes", n)
	}
}

func TestRetryDialsAnewWhenItsConnectionIsStale(t *testing.T) {
	t.Parallel()
	broken := map[string]bool{"exec": true}
	s := newSet(t, &fakeDriver{fail: func(call string) error {
		if broken[call] {
			broken[call] = false
			return driver.ErrBadConn
		}
		return nil
	}})
	conn := s.wrappedConn(t).(driver.ExecerContext)
	if _, err := conn.ExecContext(context.Background(), writeText, nil); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "dial", "exec", "dial", "exec")
	broken["ping"] = true
	if _, err := conn.ExecContext(context.Background(), writeText, nil); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "ping", "close conn", "dial", "exec")
}

// database/sql runs a statement up to three times after driver.ErrBadConn, but not every driver
// reserves that error for unsent statements.
func TestAttemptIsMadeOnceWhateverTheDriverAnswers(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{fail: func(call string) error {
		if call == "exec" {
			return driver.ErrBadConn
		}
		return nil
	}}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 2 })
	if _, err := s.wrappedConn(t).(driver.ExecerContext).ExecContext(context.Background(), writeText, nil); !errors.Is(err, bedsql.ErrPending) {
		t.Fatalf("got %v, want ErrPending", err)
	}
	s.wantCalls(t, "dial", "exec", "dial", "exec", "close conn", "dial", "exec", "close conn")
}

func TestSkipAllowsSeveralStatementsInOneText(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, func(c *bedsql.Config) { c.Pinned = bedsql.PinnedRefuse })
	if _, err := s.pool.ExecContext(bedsql.Unlogged(context.Background()), "UPDATE t SET n = 1; UPDATE t SET n = 2"); err != nil {
		t.Errorf("under Unlogged: %v", err)
	}
	if skipped, through := s.cfg.Counters.Unlogged.Load(), s.cfg.Counters.PassedThrough.Load(); skipped != 1 || through != 0 {
		t.Errorf("%d counted as skipped, %d as passed through; want 1 and 0", skipped, through)
	}
	if w := s.warnings(); len(w) != 0 {
		t.Errorf("warnings %q, want none", w)
	}
}
