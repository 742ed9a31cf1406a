package withtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// eachMySQLWith is eachWith for MySQL alone, whose DDL commits implicitly.
func eachMySQLWith(t *testing.T, wrapped bool, f func(t *testing.T, w *rig.WithRig)) {
	t.Helper()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		f(t, rig.NewWith(t, testdb.MySQL(t), wrapped, guarantee))
	})
}

// A statement that commits implicitly publishes the entries recorded before it. Later writes must
// not be added to an entry already claimed or removed by the job.
func TestWriteAfterImplicitCommitInWithIsNotLost(t *testing.T) {
	t.Parallel()
	eachMySQLWith(t, false, func(t *testing.T, w *rig.WithRig) {
		second := func(b *rig.Begun) {
			t.Helper()
			if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 2); err == nil {
				t.Error("the write after the implicit commit is recorded")
			}
		}
		claimed := w.Begun()
		claimed.Records(1)
		claimed.Must(claimed.Tx, "CREATE TABLE other (id INT PRIMARY KEY)")
		units, err := w.Storage.Claim(t.Context(), entry.ClaimRequest{DataSource: stockName(w), Limit: 1, Lease: time.Minute})
		if err != nil || len(units) != 1 {
			t.Fatalf("claimed %d units: %v", len(units), err)
		}
		second(claimed)
		if err := w.Storage.Release(t.Context(), units[0], entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		removed := w.Begun()
		removed.Records(1)
		removed.Must(removed.Tx, "CREATE TABLE another (id INT PRIMARY KEY)")
		w.RunOnce()
		w.WantNoLog()
		second(removed)
		w.WantBalances(102, 100)
		w.WantEmpty()
	})
}

// stockName is the data source that writes are recorded for.
func stockName(w *rig.WithRig) string {
	w.T.Helper()
	all, err := w.Storage.DataSources(context.Background())
	if err != nil || len(all) != 1 {
		w.T.Fatalf("the log has entries for %q: %v", all, err)
	}
	return all[0]
}

func TestDDLThatFailsEndsNothingOfWith(t *testing.T) {
	t.Parallel()
	eachMySQLWith(t, true, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		b.Records(1)
		w.Fails(b.Tx, "CREATE TABLE ((((")
		b.Records(1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestEndReportsAnEntryThatWasDiscarded(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if w.Seen && w.ExactlyOnce() {
			return // End delivers it without asking the log
		}
		b := w.Begun()
		takes(b)
		b.Records(1)
		b.Commit()
		units, err := w.Storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 1 {
			t.Fatalf("the log holds %d units: %v", len(units), err)
		}
		if err := w.Storage.Discard(t.Context(), units[0].ID); err != nil {
			t.Fatal(err)
		}
		// "Refused" would say that the job had not begun to deliver it.
		if err := b.End(); !errors.Is(err, bedsql.ErrUnknownOutcome) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown || !strings.Contains(err.Error(), units[0].ID) {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		w.WantBalances(100, 100)
	})
}

func TestRawRollbackToInWithDropsItsEntries(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			w := rig.NewWith(t, rig.FreshLike(t, db), true, guarantee)
			conn, err := w.Home.Conn(t.Context())
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
			b := w.With(tx, tx)
			b.Records(1)
			raw("SAVEPOINT unseen")
			b.Records(2)
			raw("ROLLBACK TO SAVEPOINT unseen")
			b.Commit()
			if err := b.End(); err != nil {
				t.Errorf("End says %v", err)
			}
			w.WantBalances(101, 100)
			w.WantEmpty()
		})
	})
}

// This may be the server's report of its own rollback.
func TestEndKeepsNoErrorOfTheTransactionToItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		gone := errors.New("deadlock found")
		b := rig.NewWith(t, db, false).Failing(func(text string) error {
			if text == "SELECT 1" {
				return gone
			}
			return nil
		})
		b.Records(1)
		err := b.End()
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
		for name, records := range map[string]func(b *rig.Begun) error{
			"under an order key": func(b *rig.Begun) error {
				_, err := b.Rig.Wrapped.ExecContext(bedsql.WithOrderKey(b.Ctx, "k"), b.Q(rig.Increment), 1, 2)
				return err
			},
			"of a local transaction": func(b *rig.Begun) error {
				tx, err := b.Rig.Wrapped.BeginTx(b.Ctx, nil)
				if err != nil {
					return err
				}
				b.Must(tx, rig.Increment, 1, 2)
				b.Must(tx, rig.Increment, 1, 2)
				return tx.Commit()
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				interrupted, fails := errors.New("interrupted"), false
				w := rig.NewWith(t, rig.FreshLike(t, db), false, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
				b := w.Failing(func(text string) error {
					if fails && strings.HasPrefix(text, "RELEASE SAVEPOINT ") {
						return interrupted
					}
					return nil
				})
				b.Records(1)
				fails = true
				if err := records(b); !errors.Is(err, bedsql.ErrNotLogged) || !errors.Is(err, interrupted) {
					t.Errorf("the write says %v", err)
				}
				b.Commit()
				if err := b.End(); err != nil {
					t.Error(err)
				}
				b.WantEmpty()
				if one, other := b.Balance(1), b.Balance(2); one != 101 || other != 100 {
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
		b := rig.NewWith(t, db, false).Failing(func(text string) error {
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
		b.Records(1)
		_, err := b.Rig.Wrapped.ExecContext(b.Ctx, b.Q(rig.Increment), 1, 2)
		if !errors.Is(err, full) || !errors.Is(err, failed) || !strings.Contains(err.Error(), "roll back") {
			t.Errorf("the write says %v", err)
		}
	})
}

// When its context ends, database/sql reports a transaction as done before rolling it back.
func TestEndKnowsThatTheContextRollsBack(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if !w.Seen {
			return
		}
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tx, err := w.Home.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			b := w.With(tx, tx)
			b.Records(1)
			cancel()
			if err := tx.Commit(); err == nil {
				t.Fatal("committed under a context that had ended")
			}
			if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) {
				t.Errorf("End says %v", err)
			}
		}
		w.WantBalances(100, 100)
	})
}

func TestEndWithoutTimeLeavesTheWritesToTheJob(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if !w.Seen {
			return
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 8 {
			b := w.Begun()
			b.Records(1)
			b.Commit()
			if err := b.Soft.End(ended); !errors.Is(err, bedsql.ErrPending) {
				t.Errorf("End says %v", err)
			}
		}
	})
}

// After an End before Commit the write may still be committed.
func TestKeyOfWithStaysTakenUntilTheRollback(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if !w.Seen {
			return
		}
		request := func(key string) context.Context {
			ctx, k := bedsql.WithIdempotencyKey(t.Context(), key)
			k.SetFingerprint(key)
			return ctx
		}
		adds := func(ctx context.Context) error {
			_, err := w.Rig.Wrapped.ExecContext(ctx, w.Q(rig.Increment), 1, 2)
			return err
		}
		for key, end := range map[string]func(*sql.Tx) error{
			"committed": (*sql.Tx).Commit, "rolled back": (*sql.Tx).Rollback,
			"rolled back after a SET": func(tx *sql.Tx) error {
				w.Must(tx, map[string]string{testdb.DriverMySQL: "SET @a = 1", testdb.DriverPostgres: "SET LOCAL lock_timeout = 1000"}[w.DB.Driver])
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
			tx, err := w.Home.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, soft, err := bedsql.Begin(under, bedsql.WithTx(tx))
			if err != nil {
				t.Fatal(err)
			}
			w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
			if err := soft.End(t.Context()); !errors.Is(err, bedsql.ErrNotCommitted) {
				t.Errorf("End says %v", err)
			}
			if err := end(tx); err != nil {
				t.Fatal(err)
			}
			if key == "committed" {
				rig.WantUnusable(t, key, adds(under))
				continue
			}
			for _, ctx := range []context.Context{under, request(key)} { // and sent again
				if err := adds(ctx); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
		w.Delivers()
		w.WantBalances(101, 103)
	})
}
