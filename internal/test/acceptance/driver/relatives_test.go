package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// Bugs in similar projects, as cases that pass here: docs/reliability.md.

// A reader with an offset skips rows committed after newer ones. The job asks for due entries,
// regardless of id and age.
func TestLateCommittedOlderEntryIsDelivered(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		r.Abandon(2, "UPDATE account SET balance = balance + ? WHERE id = 1")
		units, err := r.Storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 2 {
			t.Fatalf("the log holds %d units: %v", len(units), err)
		}
		older := units[0].ID
		// Its writer has not committed yet when the newer one is delivered.
		logDB := r.LogDB.Open(t)
		var columns []string
		rows, err := logDB.Query("SELECT * FROM transaction_log WHERE 1 = 0")
		if err == nil {
			columns, err = rows.Columns()
			_ = rows.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		list := strings.Join(columns, ", ")
		if r.LogDB.Driver == "mysql" {
			list = "`" + strings.Join(columns, "`, `") + "`"
		}
		r.ExecLog("CREATE TABLE kept AS SELECT * FROM transaction_log WHERE id = '" + older + "'")
		r.ExecLog("DELETE FROM transaction_log WHERE id = '" + older + "'")
		tx, err := logDB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec(fmt.Sprintf("INSERT INTO transaction_log (%s) SELECT %s FROM kept", list, list)); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Fatalf("the newer one: %+v", report)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the older one, committed behind it: %+v", report)
		}
		r.WantBalances(1 + 2)
		r.WantNoLog()
	})
}

// InnoDB locks gaps: writers that insert and delete rows, and a job that claims them, would
// deadlock unless every statement names its rows by key.
func TestWritersAndJobsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		const writers, each = 8, 25
		balances := make([]int, writers)
		r.Account(balances...)
		r.Abandon(40, "UPDATE account SET balance = balance + 0 * ? WHERE id = 1")
		deadlocks := r.Deadlocks()
		errs := make(chan error, writers*each)
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for range each {
					_, err := r.Wrapped.ExecContext(context.Background(), r.Q("UPDATE account SET balance = balance + 1 WHERE id = ?"), w+1)
					errs <- err
				}
			})
		}
		job := r.Job()
		r.Drain(job)
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Drain(job)
		for i := range balances {
			balances[i] = each
		}
		r.WantBalances(balances...)
		rig.Eventually(t, "the log is empty", func() bool {
			units, err := r.Storage.List(context.Background(), txlog.Filter{})
			return err == nil && len(units) == 0
		})
		if met := r.Deadlocks() - deadlocks; met > 0 {
			t.Errorf("the log's database met %d deadlocks", met)
		}
	})
}

// A statement to the log whose answer never comes must not hold up the job for
// ever: a claim, or a question whether the data source is paused or limited, is
// given up when a lease would be over, and the next round goes on.
func TestJobGoesOnWhenItsLogNeverAnswers(t *testing.T) {
	t.Parallel()
	for _, silent := range []string{"UPDATE transaction_log", "COMMIT", "SELECT paused, per_second, next_slot"} {
		t.Run(silent, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewLogBehindProxy(t, db)
				r.Account(0)
				r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
				target := rig.TargetOf(t, r.DB)
				job, err := asyncjob.New(r.Cfg.Storage, asyncjob.Targets{target.DataSource: target}, asyncjob.Config{
					Cron: "@every 1s", Lease: 2 * time.Second, MaxDeliveryTryDelay: asyncjob.NoDelay, Logger: rig.Quiet(),
				})
				if err != nil {
					t.Fatal(err)
				}
				struck := p.Mute(testproxy.Text(silent))
				running, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- job.Run(running) }()
				defer func() {
					stop()
					if err := errors.Join(<-ended, job.Close()); err != nil {
						t.Error(err)
					}
				}()
				rig.WaitFor(t, "the log is asked", struck)
				rig.Eventually(t, "the unit is delivered", func() bool { return r.Balance(1) == 1 && len(r.Logs()) == 0 })
			})
		})
	}
}

// One prepared statement, run repeatedly, is a write each time, with an
// entry of its own.
func TestPreparedStatementIsLoggedOnEachRun(t *testing.T) {
	t.Parallel()
	for name, staged := range map[string]bool{"immediate": false, "staged": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db, rig.ExactlyOnce)
				const n = 20
				r.Account(0)
				var options []bedsql.TxOption
				if staged {
					options = append(options, bedsql.Staged())
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ctx, soft, err := bedsql.Begin(ctx, options...)
				if err != nil {
					t.Fatal(err)
				}
				stmt, err := r.Wrapped.PrepareContext(ctx, r.Q("UPDATE account SET balance = balance + ? WHERE id = 1"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = stmt.Close() }()
				for i := range n {
					if _, err := stmt.ExecContext(ctx, i); err != nil {
						t.Fatal(err)
					}
				}
				if err := soft.End(ctx); err != nil && !errors.Is(err, bedsql.ErrPending) {
					t.Fatal(err)
				}
				r.WantBalances(n * (n - 1) / 2)
				r.WantNoLog()
			})
		})
	}
}
