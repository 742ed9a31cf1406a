package acceptance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// eachMySQLWith is eachWith for MySQL alone, whose DDL commits implicitly.
func eachMySQLWith(t *testing.T, wrapped bool, f func(t *testing.T, w *withRig)) {
	t.Helper()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		f(t, newWith(t, testdb.MySQL(t), wrapped, guarantee))
	})
}

// A statement that commits implicitly publishes the entries recorded before it. Later writes must
// not be added to an entry already claimed or removed by the job.
func TestWriteAfterImplicitCommitInWithIsNotLost(t *testing.T) {
	t.Parallel()
	eachMySQLWith(t, false, func(t *testing.T, w *withRig) {
		second := func(b *begun) {
			t.Helper()
			if _, err := w.rig.wrapped.ExecContext(b.ctx, w.q(increment), 1, 2); err == nil {
				t.Error("the write after the implicit commit is recorded")
			}
		}
		claimed := w.begun()
		claimed.records(1)
		claimed.must(claimed.tx, "CREATE TABLE other (id INT PRIMARY KEY)")
		units, err := w.storage.Claim(t.Context(), txlog.ClaimRequest{DataSource: w.stockName(), Limit: 1, Lease: time.Minute})
		if err != nil || len(units) != 1 {
			t.Fatalf("claimed %d units: %v", len(units), err)
		}
		second(claimed)
		if err := w.storage.Release(t.Context(), units[0], txlog.Verdict{}); err != nil {
			t.Fatal(err)
		}
		removed := w.begun()
		removed.records(1)
		removed.must(removed.tx, "CREATE TABLE another (id INT PRIMARY KEY)")
		w.runOnce()
		w.wantNoLog()
		second(removed)
		w.wantBalances(102, 100)
		w.wantEmpty()
	})
}

// stockName is the data source that writes are recorded for.
func (w *withRig) stockName() string {
	w.t.Helper()
	all, err := w.storage.DataSources(context.Background())
	if err != nil || len(all) != 1 {
		w.t.Fatalf("the log has entries for %q: %v", all, err)
	}
	return all[0]
}

func TestDDLThatFailsEndsNothingOfWith(t *testing.T) {
	t.Parallel()
	eachMySQLWith(t, true, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		b.records(1)
		w.fails(b.tx, "CREATE TABLE ((((")
		b.records(1)
		b.commit()
		if err := b.end(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.wantBalances(102, 100)
		w.wantEmpty()
		if n := w.atHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestEndReportsAnEntryThatWasDiscarded(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if w.seen && w.exactlyOnce() {
			return // End delivers it without asking the log
		}
		b := w.begun()
		b.takes()
		b.records(1)
		b.commit()
		units, err := w.storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 1 {
			t.Fatalf("the log holds %d units: %v", len(units), err)
		}
		if err := w.storage.Discard(t.Context(), units[0].ID); err != nil {
			t.Fatal(err)
		}
		// "Refused" would say that the job had not begun to deliver it.
		if err := b.end(); !errors.Is(err, bedsql.ErrUnknownOutcome) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown || !strings.Contains(err.Error(), units[0].ID) {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		w.wantBalances(100, 100)
	})
}

func TestRawRollbackToInWithDropsItsEntries(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			w := newWith(t, freshLike(t, db), true, guarantee)
			conn, err := w.home.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			tx, err := conn.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			raw := func(text string) {
				t.Helper()
				if err := conn.Raw(func(dc any) error {
					inner, err := dc.(*bedsql.Conn).Raw(t.Context())
					if err == nil {
						_, err = inner.(driver.ExecerContext).ExecContext(t.Context(), text, nil)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			b := w.with(tx, tx)
			b.records(1)
			raw("SAVEPOINT unseen")
			b.records(2)
			raw("ROLLBACK TO SAVEPOINT unseen")
			b.commit()
			if err := b.end(); err != nil {
				t.Errorf("End says %v", err)
			}
			w.wantBalances(101, 100)
			w.wantEmpty()
		})
	})
}

// failing is a transaction some of whose statements fail.
type failing struct {
	*sql.Tx
	fails func(text string) error
}

func (f failing) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if err := f.fails(text); err != nil {
		return nil, err
	}
	return f.Tx.ExecContext(ctx, text, args...)
}

func (f failing) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if err := f.fails(text); err != nil {
		return nil, err
	}
	return f.Tx.QueryContext(ctx, text, args...)
}

// failing begins a transaction of the bare driver at home.
func (w *withRig) failing(fails func(text string) error) *begun {
	w.t.Helper()
	tx, err := w.bare.Begin()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback() })
	return w.with(tx, failing{tx, fails})
}

// This may be the server's report of its own rollback.
func TestEndKeepsNoErrorOfTheTransactionToItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		gone := errors.New("deadlock found")
		b := newWith(t, db, false).failing(func(text string) error {
			if text == "SELECT 1" {
				return gone
			}
			return nil
		})
		b.records(1)
		err := b.end()
		wantNotCommitted(t, err)
		if !errors.Is(err, gone) {
			t.Errorf("End says %v, and not what the transaction said", err)
		}
	})
}

// A write that is reported as not logged is not in the log, although it failed at its last step.
func TestWithKeepsNothingOfAWriteWhoseSavepointIsNotReleased(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, records := range map[string]func(b *begun) error{
			"under an order key": func(b *begun) error {
				_, err := b.rig.wrapped.ExecContext(bedsql.WithOrderKey(b.ctx, "k"), b.q(increment), 1, 2)
				return err
			},
			"of a local transaction": func(b *begun) error {
				tx, err := b.rig.wrapped.BeginTx(b.ctx, nil)
				if err != nil {
					return err
				}
				b.must(tx, increment, 1, 2)
				b.must(tx, increment, 1, 2)
				return tx.Commit()
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				interrupted, fails := errors.New("interrupted"), false
				w := newWith(t, freshLike(t, db), false, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
				b := w.failing(func(text string) error {
					if fails && strings.HasPrefix(text, "RELEASE SAVEPOINT ") {
						return interrupted
					}
					return nil
				})
				b.records(1)
				fails = true
				if err := records(b); !errors.Is(err, bedsql.ErrNotLogged) || !errors.Is(err, interrupted) {
					t.Errorf("the write says %v", err)
				}
				b.commit()
				if err := b.end(); err != nil {
					t.Error(err)
				}
				b.wantEmpty()
				if one, other := b.balance(1), b.balance(2); one != 101 || other != 100 {
					t.Errorf("the balances are %d and %d, want 101 and 100", one, other)
				}
			})
		}
	})
}

// A write that is counted and could not be written must not be committed so.
func TestHalfWrittenEntryOfWithSaysRollBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		full, failed, inserts := errors.New("the table is full"), errors.New("interrupted"), 0
		b := newWith(t, db, false).failing(func(text string) error {
			switch {
			case strings.HasPrefix(text, "INSERT"):
				if inserts++; inserts == 2 {
					return full
				}
			case inserts == 2:
				return failed
			}
			return nil
		})
		b.records(1)
		_, err := b.rig.wrapped.ExecContext(b.ctx, b.q(increment), 1, 2)
		if !errors.Is(err, full) || !errors.Is(err, failed) || !strings.Contains(err.Error(), "roll back") {
			t.Errorf("the write says %v", err)
		}
	})
}

// When its context ends, database/sql reports a transaction as done before rolling it back.
func TestEndKnowsThatTheContextRollsBack(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if !w.seen {
			return
		}
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tx, err := w.home.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			b := w.with(tx, tx)
			b.records(1)
			cancel()
			if err := tx.Commit(); err == nil {
				t.Fatal("committed under a context that had ended")
			}
			if err := b.end(); !errors.Is(err, bedsql.ErrRolledBack) {
				t.Errorf("End says %v", err)
			}
		}
		w.wantBalances(100, 100)
	})
}

func TestEndWithoutTimeLeavesTheWritesToTheJob(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if !w.seen {
			return
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 8 {
			b := w.begun()
			b.records(1)
			b.commit()
			if err := b.soft.End(ended); !errors.Is(err, bedsql.ErrPending) {
				t.Errorf("End says %v", err)
			}
		}
	})
}

// After an End before Commit the write may still be committed.
func TestKeyOfWithStaysTakenUntilTheRollback(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if !w.seen {
			return
		}
		request := func(key string) context.Context {
			ctx, k := bedsql.WithIdempotencyKey(t.Context(), key)
			k.SetFingerprint(key)
			return ctx
		}
		adds := func(ctx context.Context) error {
			_, err := w.rig.wrapped.ExecContext(ctx, w.q(increment), 1, 2)
			return err
		}
		for key, end := range map[string]func(*sql.Tx) error{
			"committed": (*sql.Tx).Commit, "rolled back": (*sql.Tx).Rollback,
			"rolled back after a SET": func(tx *sql.Tx) error {
				w.must(tx, map[string]string{testdb.DriverMySQL: "SET @a = 1", testdb.DriverPostgres: "SET LOCAL lock_timeout = 1000"}[w.db.Driver])
				return tx.Rollback()
			},
			"refused": func(tx *sql.Tx) error {
				if _, err := tx.ExecContext(bedsql.RequireRows(t.Context(), 2), "UPDATE account SET balance = 0 WHERE id = 1"); err == nil {
					t.Error("two rows were changed")
				}
				if err := tx.Commit(); err == nil {
					return errors.New("it was committed")
				}
				return nil
			},
		} {
			under := request(key)
			tx, err := w.home.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, soft, err := bedsql.Begin(under, bedsql.WithTx(tx))
			if err != nil {
				t.Fatal(err)
			}
			w.stage(ctx, w.rig.wrapped, increment, 1, 1)
			if err := soft.End(t.Context()); !errors.Is(err, bedsql.ErrNotCommitted) {
				t.Errorf("End says %v", err)
			}
			if err := end(tx); err != nil {
				t.Fatal(err)
			}
			if key == "committed" {
				wantUnusable(t, key, adds(under))
				continue
			}
			for _, ctx := range []context.Context{under, request(key)} { // and sent again
				if err := adds(ctx); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
		w.delivers()
		w.wantBalances(101, 103)
	})
}
