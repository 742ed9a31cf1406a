package txlog_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// eachEndRefused runs f on a log with one connection. refuse makes the next COMMIT or ROLLBACK fail
// and leave the transaction open.
func eachEndRefused(t *testing.T, f func(t *testing.T, s *txlog.SQLStorage, rows func() int, refuse func(text string))) {
	t.Helper()
	for _, c := range []struct {
		db     testdb.DB
		answer []byte
	}{
		{testdb.MySQL(t), testproxy.MySQLError(1047, "08S01", "WSREP has not yet prepared node for application use")},
		{testdb.Postgres(t), testproxy.PostgresError("57P03", "not now", 'T')},
	} {
		t.Run(c.db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, c.db.Addr())
			s := open(t, c.db.Via(p.Addr()), txlog.WithMaxConns(1))
			direct := c.db.Open(t)
			f(t, s, func() int { return rowCount(t, direct) }, func(text string) { p.Answer(testproxy.Text(text), c.answer) })
		})
	}
}

// large is a unit that needs a local transaction of several statements.
func large() *entry.Unit { return unit(slices.Repeat([]string{"UPDATE a"}, 300)...) }

func TestLogConnectionWithRefusedCommitIsNotReused(t *testing.T) {
	t.Parallel()
	eachEndRefused(t, func(t *testing.T, s *txlog.SQLStorage, rows func() int, refuse func(string)) {
		refuse("COMMIT")
		if err := s.Add(t.Context(), time.Minute, large()); err == nil || errors.Is(err, txlog.ErrInDoubt) {
			t.Fatalf("the answer to a COMMIT that was refused is %v, want a definite error", err)
		}
		mustAdd(t, s, unit("UPDATE b"))
		if n := rows(); n != 1 {
			t.Errorf("%d rows, want that of the unit whose Add returned nil", n)
		}
		mustAdd(t, s, large())
		if n := rows(); n != 301 {
			t.Errorf("%d rows, want 301: what was refused must not come back", n)
		}
	})
}

func TestLogConnectionWithRefusedRollbackIsNotReused(t *testing.T) {
	t.Parallel()
	eachEndRefused(t, func(t *testing.T, s *txlog.SQLStorage, rows func() int, refuse func(string)) {
		u := unit("UPDATE a")
		mustAdd(t, s, u, unit("UPDATE b"))
		refuse("ROLLBACK")
		refused := errors.New("it must not be")
		_, err := logdb.Of(s).Decide(t.Context(), entry.DecidePark, []string{u.ID}, func(*entry.Unit) bool { return true },
			func(_ entry.Decided, exec func(string, ...any) error) error {
				if err := exec("DELETE FROM transaction_log WHERE id <> '" + u.ID + "'"); err != nil {
					return err
				}
				return refused
			})
		if !errors.Is(err, refused) {
			t.Fatalf("the decision's error is %v, want that of what belongs to it", err)
		}
		mustAdd(t, s, large())
		if n := rows(); n != 302 {
			t.Errorf("%d rows, want 302: what was rolled back must not be committed", n)
		}
	})
}

// A driver's transaction takes no context. A lost answer, behind a firewall that forgot the
// connection, must delay each caller only within his own deadline.
func TestUnansweredEndOfALogTransactionHoldsNobody(t *testing.T) {
	t.Parallel()
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t)} {
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, db.Addr())
			s := open(t, db.Via(p.Addr()), txlog.WithMaxConns(1))
			u := unit("UPDATE a")
			mustAdd(t, s, u)
			bounded := func(text, what string, f func(context.Context) error) {
				t.Helper()
				struck := p.Mute(testproxy.Text(text))
				ended := make(chan error, 1)
				go func() { ended <- f(testproxy.Until(t, struck, time.Second)) }()
				select {
				case err := <-ended:
					if err == nil {
						t.Errorf("%s returned nil, though its %s was not answered", what, text)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s still waits for the answer to %s, long after its context", what, text)
				}
				testproxy.Await(t, struck)
			}
			bounded("COMMIT", "Claim", func(ctx context.Context) error {
				_, err := s.Claim(ctx, entry.ClaimRequest{DataSource: u.DataSource, Lease: time.Millisecond, Limit: 10})
				return err
			})
			bounded("COMMIT", "Add", func(ctx context.Context) error {
				u := large()
				if err := s.Add(ctx, time.Minute, u); err != nil {
					return err
				}
				if _, err := s.Get(t.Context(), u.ID); err != nil {
					t.Errorf("Add returned nil, but the entry: %v", err)
				}
				return errors.New("it looked again")
			})
			bounded("ROLLBACK", "Decide", func(ctx context.Context) error {
				_, err := logdb.Of(s).Decide(ctx, entry.DecidePark, []string{u.ID}, func(*entry.Unit) bool { return true },
					func(entry.Decided, func(string, ...any) error) error { return errors.New("it must not be") })
				return err
			})
			mustAdd(t, s, unit("UPDATE b"))
		})
	}
}

func TestPanicInALogTransactionLeavesItUsable(t *testing.T) {
	t.Parallel()
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t), testdb.SQLite(t)} {
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			s := open(t, db, txlog.WithMaxConns(1))
			u := unit("UPDATE a")
			mustAdd(t, s, u)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic is swallowed")
					}
				}()
				_, _ = logdb.Of(s).Decide(t.Context(), entry.DecidePark, []string{u.ID}, func(*entry.Unit) bool { return true }, func(_ entry.Decided, exec func(string, ...any) error) error {
					_ = exec("DELETE FROM transaction_log")
					panic("of the driver")
				})
			}()
			mustAdd(t, s, unit("UPDATE b"))
			if n := rowCount(t, db.Open(t)); n != 2 {
				t.Errorf("%d rows, want 2", n)
			}
		})
	}
}
