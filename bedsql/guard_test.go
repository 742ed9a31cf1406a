package bedsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const hazardText = "UPDATE t SET n = n + 1"

func guardIs(p bedsql.GuardPolicy) func(*bedsql.Config) {
	return func(cfg *bedsql.Config) { cfg.Guard = p }
}

func mustExec(t *testing.T, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, ctx context.Context, query string, args ...any) { //nolint:revive // ctx is the variable part of a call
	t.Helper()
	if _, err := db.ExecContext(ctx, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestGuardWarnsOncePerStatementWithoutValues(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := context.Background()
	for i := range 5 {
		mustExec(t, s.pool, ctx, fmt.Sprintf("UPDATE t SET n = n + 1 WHERE name = 'secret%d'", i))
		mustExec(t, s.pool, ctx, "UPDATE t SET n = n + ? WHERE id = ?", 1, "secret")
		mustExec(t, s.pool, ctx, writeText)
	}
	if w := s.warnings(); len(w) != 2 {
		t.Fatalf("%d warnings for two statements: %q", len(w), w)
	}
	for _, e := range s.lines.AllEntries() {
		line, err := e.String()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "secret") || !strings.Contains(line, "UPDATE t SET n = n + ?") || !strings.Contains(line, "ExactlyOnce") {
			t.Errorf("the warning is %s", line)
		}
	}
	if n := s.cfg.Counters.Guarded.Load(); n != 10 {
		t.Errorf("Guarded = %d, want 10", n)
	}
	if n := s.storage.logged(); n != 15 {
		t.Errorf("%d entries were written, want 15", n)
	}
}

func TestGuardRemembersABoundedNumberOfStatements(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	const n = 3000
	for range 2 {
		for i := range n {
			mustExec(t, s.pool, context.Background(), fmt.Sprintf("UPDATE t%d SET n = n + 1", i))
		}
	}
	if w := len(s.warnings()); w != 1025 {
		t.Errorf("%d warnings for %d statements, want 1024 and that there are more", w, n)
	}
	if got := s.cfg.Counters.Guarded.Load(); got != 2*n {
		t.Errorf("Guarded = %d, want %d", got, 2*n)
	}
}

func TestGuardRefusesBeforeAnythingIsLoggedOrSent(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, guardIs(bedsql.GuardRefuse))
	ctx := context.Background()
	stmt, err := s.pool.PrepareContext(ctx, hazardText)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stmt.Close() }()
	s.f.recorded()
	_, exec := s.pool.ExecContext(ctx, hazardText)
	_, query := s.pool.QueryContext(ctx, hazardText+" RETURNING n")
	_, prepared := stmt.ExecContext(ctx)
	softly, soft, err := bedsql.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, inSoft := s.pool.ExecContext(softly, hazardText)
	if err := soft.End(ctx); err != nil {
		t.Errorf("End reports what the caller got: %v", err)
	}
	staging, staged, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	_, inStaged := s.pool.ExecContext(staging, hazardText)
	if err := staged.End(ctx); err != nil {
		t.Errorf("End reports what the caller got: %v", err)
	}
	for name, err := range map[string]error{
		"Exec": exec, "Query": query, "prepared": prepared, "soft": inSoft, "staged": inStaged,
	} {
		if !errors.Is(err, bedsql.ErrNotIdempotent) || !strings.Contains(err.Error(), "absolute value") {
			t.Errorf("%s: %v, want ErrNotIdempotent and what to do", name, err)
		}
	}
	if n := s.storage.logged(); n != 0 {
		t.Errorf("%d entries were written, want none", n)
	}
	if n := s.cfg.Counters.Guarded.Load(); n != 5 {
		t.Errorf("Guarded = %d, want 5", n)
	}
	if w := s.warnings(); len(w) != 0 {
		t.Errorf("warned of what was refused: %q", w)
	}
	s.wantCalls(t)
}

func TestGuardRefusesInTransactionThatGoesOn(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, guardIs(bedsql.GuardRefuse))
	ctx := context.Background()
	tx, err := s.pool.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, tx, ctx, writeText)
	if _, err := tx.ExecContext(ctx, hazardText); !errors.Is(err, bedsql.ErrNotIdempotent) {
		t.Errorf("a refused statement: %v, want ErrNotIdempotent", err)
	}
	if _, err := tx.QueryContext(ctx, hazardText+" RETURNING n"); !errors.Is(err, bedsql.ErrNotIdempotent) {
		t.Errorf("a refused query: %v, want ErrNotIdempotent", err)
	}
	mustExec(t, tx, bedsql.Unlogged(ctx), hazardText)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "dial", "begin tx 0 false", "exec", "exec", "commit")
}

// A unit that is parked after a lost answer to its COMMIT does not run again.
func TestGuardIgnoresTransactionsThatAreNotRedelivered(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, guardIs(bedsql.GuardRefuse))
	ctx := context.Background()
	tx, err := s.pool.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRowContext(ctx, readText).Scan(&n); err != nil {
		t.Fatal(err)
	}
	mustExec(t, tx, ctx, hazardText)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := s.cfg.Counters.Guarded.Load(); n != 0 {
		t.Errorf("Guarded = %d, want 0", n)
	}
}

func TestGuardDoesNotLookAtWhatRunsUnlogged(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, guardIs(bedsql.GuardRefuse))
	ctx := context.Background()
	mustExec(t, s.pool, bedsql.Unlogged(ctx), hazardText)
	conn := s.pinned(t)
	mustExec(t, conn, ctx, hazardText)
	tx, err := s.pool.BeginTx(bedsql.Unlogged(ctx), nil)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, tx, ctx, hazardText)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := s.cfg.Counters.Guarded.Load(); n != 0 {
		t.Errorf("Guarded = %d, want 0", n)
	}
}

func TestGuardOffLooksAtNothing(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{}, guardIs(bedsql.GuardOff))
	mustExec(t, s.pool, context.Background(), hazardText)
	mustExec(t, s.pool, context.Background(), "INSERT INTO t DEFAULT VALUES")
	if w, n := s.warnings(), s.cfg.Counters.Guarded.Load(); len(w) != 0 || n != 0 {
		t.Errorf("warnings %q, Guarded = %d, want none", w, n)
	}
}

// mysqlSet is a set with a driver that poses as MySQL's. Its Results have the id 41.
func mysqlSet(t *testing.T, change ...func(*bedsql.Config)) *set {
	t.Helper()
	s := &set{f: &fakeDriver{}, storage: &spyStorage{Memory: txlog.NewMemory()}}
	s.cfg, s.lines = testConfig(s.storage)
	for _, c := range change {
		c(&s.cfg)
	}
	c, err := bedsql.NewConnector(delivery.Target{Connector: s.f, DataSource: "orders", Dialect: &dialect.Dialect{Name: "fake", Flavor: sqltext.MySQL, GeneratedIDs: true}}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.pool = sql.OpenDB(c)
	t.Cleanup(func() { _ = s.pool.Close() })
	return s
}

// TestGuardTakesNoMemoryOnceItHasWarned is not parallel: allocations of other
// goroutines would be counted.
func TestGuardTakesNoMemoryOnceItHasWarned(t *testing.T) {
	ctx := context.Background()
	const plain, hazard = "UPDATE t SET n = 1 + 1", "UPDATE t SET n = n + 1"
	s := mysqlSet(t)
	exec := func(query string) func() error {
		return func() error {
			_, err := s.pool.ExecContext(ctx, query)
			return err
		}
	}
	want, got := allocations(t, exec(plain)), allocations(t, exec(hazard))
	if got > want {
		t.Errorf("%v allocations for a statement that was warned of, %v for one that is none of its business", got, want)
	}
}
