package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func wantOutcomeOf(t testing.TB, what string, err error, want bedsql.Outcome) {
	t.Helper()
	if got := bedsql.OutcomeOf(err); got != want {
		t.Errorf("%s: %v is %v, want %v", what, err, got, want)
	}
}

// database/sql reports the end of the context in place of the rows that it was given.
func TestQueryRowIsDeliveredDespiteLateContextEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var end context.CancelFunc
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onRemove: func([]*txlog.Unit) error {
				end() // the target has answered
				return nil
			}}
		})
		r.account()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		end = cancel
		err := r.wrapped.QueryRowContext(ctx, "INSERT INTO account VALUES (1, 5) RETURNING id").Scan(new(int))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the context to be found", err)
		}
		wantOutcomeOf(t, "it was applied", err, bedsql.OutcomeDelivered)
		r.wantBalances(5)
	})
}

// slowly is a statement that runs until it is killed.
func slowly(r *rig, statement string) string {
	if r.db.Driver == testdb.DriverSQLite {
		return statement + " AND (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3000000) SELECT max(n) FROM c) > 0"
	}
	r.blockRow(1)
	return statement
}

func TestOpenOutcomeOfAContextIsReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			under func(context.Context) context.Context
			query bool
			begun bedsql.Outcome
		}{
			"Exec":                    {nil, false, bedsql.OutcomeAccepted},
			"QueryRow":                {nil, true, bedsql.OutcomeAccepted},
			"Exec, logged on failure": {onFailure, false, bedsql.OutcomeAccepted},
			"Exec under Unlogged":     {bedsql.Unlogged, false, bedsql.OutcomeUnknown},
			"QueryRow under Unlogged": {bedsql.Unlogged, true, bedsql.OutcomeUnknown},
		} {
			t.Run(name, func(t *testing.T) {
				if c.query && db.Driver == testdb.DriverMySQL {
					return // UPDATE … RETURNING does not exist
				}
				r := newRig(t, freshLike(t, db))
				r.account(100)
				update := slowly(r, "UPDATE account SET balance = balance - 10 WHERE id = 1")
				running := r.running("UPDATE account")
				write := func(ctx context.Context) error {
					if c.under != nil {
						ctx = c.under(ctx)
					}
					if c.query {
						return r.wrapped.QueryRowContext(ctx, update+" RETURNING id").Scan(new(int))
					}
					_, err := r.wrapped.ExecContext(ctx, update)
					return err
				}
				ended, end := context.WithCancel(context.Background())
				end()
				err := write(ended)
				wantOutcomeOf(t, "before anything was sent", err, bedsql.OutcomeNotAccepted)
				if len(r.logs()) != 0 {
					t.Error("something was logged")
				}
				ctx, end := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- write(ctx) }()
				running()
				end()
				err = <-done
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want the end of the context to be found", err)
				}
				wantOutcomeOf(t, "while it ran", err, c.begun)
			})
		}
	})
}

func onFailure(ctx context.Context) context.Context {
	return bedsql.WithLogging(ctx, bedsql.LogOnFailure)
}

func TestOutcomesOfWhatTheDatabaseAnswers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		_, err := r.wrapped.Exec("INSERT INTO account VALUES (1, 5)")
		wantOutcomeOf(t, "a duplicate key", err, bedsql.OutcomeRefused)
		_, err = r.wrapped.Exec("UPDATE account SET nope = 1")
		wantOutcomeOf(t, "an unknown column", err, bedsql.OutcomeRefused)
		_, err = r.wrapped.Exec(r.q(setBalance), 1)
		wantOutcomeOf(t, "a missing argument", err, bedsql.OutcomeRefused)
		_, err = r.wrapped.Exec(r.q(setBalance), 1, make(chan int))
		wantOutcomeOf(t, "an argument that no driver takes", err, bedsql.OutcomeRefused)
		tx := r.begin()
		_, err = tx.Exec("INSERT INTO account VALUES (1, 5)")
		wantOutcomeOf(t, "a duplicate key in a local transaction", err, bedsql.OutcomeRefused)
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		_, err = tx.Exec("INSERT INTO account VALUES (2, 5)")
		wantOutcomeOf(t, "after the end of its local transaction", err, bedsql.OutcomeNotAccepted)
		err = r.wrapped.QueryRow("INSERT INTO account VALUES (3, 5) RETURNING id").Scan(new(sql.NullTime))
		wantOutcomeOf(t, "a row that cannot be scanned", err, bedsql.OutcomeDelivered)

		take := func(n int) error {
			ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "request")
			_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), n, 1)
			return err
		}
		wantOutcomeOf(t, "a key's first request", take(1), bedsql.OutcomeDelivered)
		wantOutcomeOf(t, "another request under it", take(2), bedsql.OutcomeRefused)
	})
}

func TestOutcomesOfAnUnreachableTarget(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(100)
		skipped := bedsql.Unlogged(context.Background())
		match := testproxy.MySQLExecute
		if db.Driver == testdb.DriverPostgres {
			match = testproxy.PostgresExecute
		}
		p.CutAfter(match)
		_, err := r.wrapped.ExecContext(skipped, r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		wantOutcomeOf(t, "a write that ran unlogged, and whose answer was lost", err, bedsql.OutcomeUnknown)
		p.Refuse()
		p.CutAll()
		_, err = r.wrapped.Exec("UPDATE account SET balance = 80")
		wantOutcomeOf(t, "a write", err, bedsql.OutcomeAccepted)
		_, err = r.wrapped.ExecContext(skipped, "UPDATE account SET balance = 80")
		wantOutcomeOf(t, "a write that would run unlogged", err, bedsql.OutcomeNotAccepted)
		_, err = r.wrapped.Begin()
		wantOutcomeOf(t, "a local transaction", err, bedsql.OutcomeNotAccepted)
	})
}

// The receipt says that the COMMIT never arrived, and never will.
func TestCommitDisprovedByItsReceiptIsNotAccepted(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
		r.account(100)
		tx := r.begin()
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		r.must(tx, "UPDATE account SET balance = 90 WHERE id = 1")
		p.CutBefore(testproxy.Text("COMMIT"))
		wantOutcomeOf(t, "COMMIT", tx.Commit(), bedsql.OutcomeNotAccepted)
		r.wantBalances(100)
		r.wantNoLog()
	})
}

func TestOutcomesOfEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, opts := range [][]bedsql.TxOption{nil, {bedsql.Staged()}} {
			one := newRig(t, freshLike(t, db), noSyncRetry)
			two := newRigWithLog(t, freshLike(t, db), one.logDB, noSyncRetry)
			one.account(100)
			two.account(100)
			name := targetOf(t, one.db).DataSource
			end := func(second string) *bedsql.EndError {
				t.Helper()
				ctx, soft, err := bedsql.Begin(context.Background(), opts...)
				if err != nil {
					t.Fatal(err)
				}
				one.stage(ctx, one.wrapped, "UPDATE account SET balance = balance + 1 WHERE id = 1")
				two.stage(ctx, two.wrapped, second)
				if err = soft.End(context.Background()); err == nil {
					return nil
				}
				var e *bedsql.EndError
				if !errors.As(err, &e) || !slices.Equal(e.Delivered, []string{name}) {
					t.Fatalf("%v, want what was delivered to %s to be said", err, name)
				}
				return e
			}
			if err := end("UPDATE account SET balance = 1 WHERE id = 1"); err != nil {
				t.Errorf("all delivered: %v", err)
			}
			wantOutcomeOf(t, "one part delivered and one refused", end("INSERT INTO account VALUES (1, 5)"), bedsql.OutcomePartlyRefused)
			if db.Driver != testdb.DriverSQLite {
				continue
			}
			lock, err := two.bare.Conn(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
				t.Fatal(err)
			}
			patient := two.wrapped
			two.wrapped = two.open(impatient(two.db).DSN)
			wantOutcomeOf(t, "one part delivered and one pending", end("UPDATE account SET balance = 2 WHERE id = 1"), bedsql.OutcomeAccepted)
			two.wrapped = patient
			if _, err := lock.ExecContext(context.Background(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			_ = lock.Close()
		}
	})
}

func TestOutcomesOfAnEndThatLoggedNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := false
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error {
				if down {
					return errLogDown
				}
				return nil
			}}
		})
		r.account(100)
		ctx, soft := staged(t)
		r.stage(ctx, r.wrapped, increment, 1, 1)
		down = true
		wantOutcomeOf(t, "the log is down", soft.End(context.Background()), bedsql.OutcomeNotAccepted)
		down = false

		outer, end := context.WithCancel(context.Background())
		ctx, soft, err := bedsql.Begin(outer, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, r.wrapped, increment, 1, 1)
		end()
		wantOutcomeOf(t, "its context has ended", soft.End(context.Background()), bedsql.OutcomeNotAccepted)

		ctx, soft = staged(t)
		r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (1, 5)")
		wantOutcomeOf(t, "all of it is refused", soft.End(context.Background()), bedsql.OutcomeRefused)
		r.wantBalances(100)
	})
}

// This End cannot know the outcome of the other goroutine's write.
func TestEndWithEndedContextIsUnknown(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(100)
		free := r.blockRow(1)
		ctx, soft, err := bedsql.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		running := r.running("UPDATE account")
		go func() {
			_, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 90 WHERE id = 1")
			done <- err
		}()
		running()
		ended, end := context.WithCancel(context.Background())
		end()
		err = soft.End(ended)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the context to be found", err)
		}
		wantOutcomeOf(t, "a write was still running", err, bedsql.OutcomeUnknown)
		free()
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantOutcomeOf(t, "asked again", soft.End(context.Background()), bedsql.OutcomeDelivered)
	})
}
