package truth

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// database/sql reports the end of the context in place of the rows that it was given.
func TestQueryRowIsDeliveredDespiteLateContextEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var end context.CancelFunc
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnRemove: func([]*entry.Unit) error {
				end() // the target has answered
				return nil
			}}
		})
		r.Account()
		if !r.Returns(t) {
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		end = cancel
		err := r.Wrapped.QueryRowContext(ctx, "INSERT INTO account VALUES (1, 5) RETURNING id").Scan(new(int))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the context to be found", err)
		}
		rig.WantOutcomeOf(t, "it was applied", err, bedsql.OutcomeDelivered)
		r.WantBalances(5)
	})
}

// slowly is a statement that runs until it is killed.
func slowly(r *rig.Rig, statement string) string {
	if r.DB.Driver == testdb.DriverSQLite {
		return statement + " AND (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 1000000000) SELECT max(n) FROM c) > 0"
	}
	r.BlockRow(1)
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
				r := rig.New(t, rig.FreshLike(t, db))
				r.Account(100)
				update := slowly(r, "UPDATE account SET balance = balance - 10 WHERE id = 1")
				running := r.Running("UPDATE account")
				write := func(ctx context.Context) error {
					if c.under != nil {
						ctx = c.under(ctx)
					}
					if c.query {
						return r.Wrapped.QueryRowContext(ctx, update+" RETURNING id").Scan(new(int))
					}
					_, err := r.Wrapped.ExecContext(ctx, update)
					return err
				}
				ended, end := context.WithCancel(context.Background())
				end()
				err := write(ended)
				rig.WantOutcomeOf(t, "before anything was sent", err, bedsql.OutcomeNotAccepted)
				if len(r.Logs()) != 0 {
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
				rig.WantOutcomeOf(t, "while it ran", err, c.begun)
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
		r := rig.New(t, db)
		r.Account(100)
		_, err := r.Wrapped.Exec("INSERT INTO account VALUES (1, 5)")
		rig.WantOutcomeOf(t, "a duplicate key", err, bedsql.OutcomeRefused)
		_, err = r.Wrapped.Exec("UPDATE account SET nope = 1")
		rig.WantOutcomeOf(t, "an unknown column", err, bedsql.OutcomeRefused)
		_, err = r.Wrapped.Exec(r.Q(rig.SetBalance), 1)
		rig.WantOutcomeOf(t, "a missing argument", err, bedsql.OutcomeRefused)
		_, err = r.Wrapped.Exec(r.Q(rig.SetBalance), 1, make(chan int))
		rig.WantOutcomeOf(t, "an argument that no driver takes", err, bedsql.OutcomeRefused)
		tx := r.Begin()
		_, err = tx.Exec("INSERT INTO account VALUES (1, 5)")
		rig.WantOutcomeOf(t, "a duplicate key in a local transaction", err, bedsql.OutcomeRefused)
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		_, err = tx.Exec("INSERT INTO account VALUES (2, 5)")
		rig.WantOutcomeOf(t, "after the end of its local transaction", err, bedsql.OutcomeNotAccepted)
		if r.Returns(t) {
			err = r.Wrapped.QueryRow("INSERT INTO account VALUES (3, 5) RETURNING id").Scan(new(sql.NullTime))
			rig.WantOutcomeOf(t, "a row that cannot be scanned", err, bedsql.OutcomeDelivered)
		}

		take := func(n int) error {
			ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "request")
			_, err := r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), n, 1)
			return err
		}
		rig.WantOutcomeOf(t, "a key's first request", take(1), bedsql.OutcomeDelivered)
		rig.WantOutcomeOf(t, "another request under it", take(2), bedsql.OutcomeRefused)
	})
}

func TestOutcomesOfAnUnreachableTarget(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(100)
		skipped := bedsql.Unlogged(context.Background())
		match := testproxy.MySQLExecute
		if db.Driver == testdb.DriverPostgres {
			match = testproxy.PostgresExecute
		}
		p.CutAfter(match)
		_, err := r.Wrapped.ExecContext(skipped, r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		rig.WantOutcomeOf(t, "a write that ran unlogged, and whose answer was lost", err, bedsql.OutcomeUnknown)
		p.Refuse()
		p.CutAll()
		_, err = r.Wrapped.Exec("UPDATE account SET balance = 80")
		rig.WantOutcomeOf(t, "a write", err, bedsql.OutcomeAccepted)
		_, err = r.Wrapped.ExecContext(skipped, "UPDATE account SET balance = 80")
		rig.WantOutcomeOf(t, "a write that would run unlogged", err, bedsql.OutcomeNotAccepted)
		_, err = r.Wrapped.Begin()
		rig.WantOutcomeOf(t, "a local transaction", err, bedsql.OutcomeNotAccepted)
	})
}

// The receipt says that the COMMIT never arrived, and never will.
func TestCommitDisprovedByItsReceiptIsNotAccepted(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
		r.Account(100)
		tx := r.Begin()
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		r.Must(tx, "UPDATE account SET balance = 90 WHERE id = 1")
		p.CutBefore(testproxy.Commit)
		rig.WantOutcomeOf(t, "COMMIT", tx.Commit(), bedsql.OutcomeNotAccepted)
		r.WantBalances(100)
		r.WantNoLog()
	})
}

func TestOutcomesOfEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, opts := range [][]bedsql.TxOption{nil, {bedsql.Staged()}} {
			one := rig.New(t, rig.FreshLike(t, db), rig.NoSyncRetry)
			two := rig.NewWithLog(t, rig.FreshLike(t, db), one.LogDB, rig.NoSyncRetry)
			one.Account(100)
			two.Account(100)
			name := rig.TargetOf(t, one.DB).DataSource
			end := func(second string) *bedsql.EndError {
				t.Helper()
				ctx, soft, err := bedsql.Begin(context.Background(), opts...)
				if err != nil {
					t.Fatal(err)
				}
				one.Stage(ctx, one.Wrapped, "UPDATE account SET balance = balance + 1 WHERE id = 1")
				two.Stage(ctx, two.Wrapped, second)
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
			rig.WantOutcomeOf(t, "one part delivered and one refused", end("INSERT INTO account VALUES (1, 5)"), bedsql.OutcomePartlyRefused)
			if db.Driver != testdb.DriverSQLite {
				continue
			}
			lock, err := two.Bare.Conn(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
				t.Fatal(err)
			}
			patient := two.Wrapped
			two.Wrapped = two.Open(rig.Impatient(two.DB).DSN)
			rig.WantOutcomeOf(t, "one part delivered and one pending", end("UPDATE account SET balance = 2 WHERE id = 1"), bedsql.OutcomeAccepted)
			two.Wrapped = patient
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
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error {
				if down {
					return rig.ErrLogDown
				}
				return nil
			}}
		})
		r.Account(100)
		ctx, soft := rig.Staged(t)
		r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		down = true
		rig.WantOutcomeOf(t, "the log is down", soft.End(context.Background()), bedsql.OutcomeNotAccepted)
		down = false

		outer, end := context.WithCancel(context.Background())
		ctx, soft, err := bedsql.Begin(outer, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		end()
		rig.WantOutcomeOf(t, "its context has ended", soft.End(context.Background()), bedsql.OutcomeNotAccepted)

		ctx, soft = rig.Staged(t)
		r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (1, 5)")
		rig.WantOutcomeOf(t, "all of it is refused", soft.End(context.Background()), bedsql.OutcomeRefused)
		r.WantBalances(100)
	})
}

// This End cannot know the outcome of the other goroutine's write.
func TestEndWithEndedContextIsUnknown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		free := r.BlockRow(1)
		ctx, soft, err := bedsql.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		running := r.Running("UPDATE account")
		go func() {
			_, err := r.Wrapped.ExecContext(ctx, "UPDATE account SET balance = 90 WHERE id = 1")
			done <- err
		}()
		running()
		ended, end := context.WithCancel(context.Background())
		end()
		err = soft.End(ended)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the context to be found", err)
		}
		rig.WantOutcomeOf(t, "a write was still running", err, bedsql.OutcomeUnknown)
		free()
		if err := <-done; err != nil {
			t.Error(err)
		}
		rig.WantOutcomeOf(t, "asked again", soft.End(context.Background()), bedsql.OutcomeDelivered)
	})
}
