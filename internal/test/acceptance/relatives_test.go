package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// Bugs in similar projects, as cases that pass here: docs/reliability.md.

// A reader with an offset skips rows committed after newer ones. The job asks for due entries,
// regardless of id and age.
func TestLateCommittedOlderEntryIsDelivered(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		r.abandon(2, "UPDATE account SET balance = balance + ? WHERE id = 1")
		units, err := r.storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 2 {
			t.Fatalf("the log holds %d units: %v", len(units), err)
		}
		older := units[0].ID
		// Its writer has not committed yet when the newer one is delivered.
		logDB := r.logDB.Open(t)
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
		if r.logDB.Driver == "mysql" {
			list = "`" + strings.Join(columns, "`, `") + "`"
		}
		r.execLog("CREATE TABLE kept AS SELECT * FROM transaction_log WHERE id = '" + older + "'")
		r.execLog("DELETE FROM transaction_log WHERE id = '" + older + "'")
		tx, err := logDB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec(fmt.Sprintf("INSERT INTO transaction_log (%s) SELECT %s FROM kept", list, list)); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Fatalf("the newer one: %+v", report)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the older one, committed behind it: %+v", report)
		}
		r.wantBalances(1 + 2)
		r.wantNoLog()
	})
}

// InnoDB locks gaps: writers that insert and delete rows, and a job that claims them, would
// deadlock unless every statement names its rows by key.
func TestWritersAndJobsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		const writers, each = 8, 25
		balances := make([]int, writers)
		r.account(balances...)
		r.abandon(40, "UPDATE account SET balance = balance + 0 * ? WHERE id = 1")
		deadlocks := r.deadlocks()
		errs := make(chan error, writers*each)
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for range each {
					_, err := r.wrapped.ExecContext(context.Background(), r.q("UPDATE account SET balance = balance + 1 WHERE id = ?"), w+1)
					errs <- err
				}
			})
		}
		job := r.job()
		r.drain(job)
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		r.drain(job)
		for i := range balances {
			balances[i] = each
		}
		r.wantBalances(balances...)
		eventually(t, "the log is empty", func() bool {
			units, err := r.storage.List(context.Background(), txlog.Filter{})
			return err == nil && len(units) == 0
		})
		if met := r.deadlocks() - deadlocks; met > 0 {
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
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigLogBehindProxy(t, db)
				r.account(0)
				r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
				target := targetOf(t, r.db)
				job, err := asyncjob.New(r.cfg.Storage, asyncjob.Targets{target.DataSource: target}, asyncjob.Config{
					Cron: "@every 1s", Lease: 2 * time.Second, MaxDeliveryTryDelay: asyncjob.NoDelay, Logger: quiet(),
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
				waitFor(t, "the log is asked", struck)
				eventually(t, "the unit is delivered", func() bool { return r.balance(1) == 1 && len(r.logs()) == 0 })
			})
		})
	}
}

// deadlocks counts the deadlocks in this test's own log database. MySQL counts them per server;
// there it counts the ones in the log.
func (r *rig) deadlocks() (n int) {
	r.t.Helper()
	log := r.logDB.Open(r.t)
	var err error
	if r.logDB.Driver == "postgres" {
		err = log.QueryRow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	} else {
		var kind, name, status string
		if err = log.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err == nil {
			_, latest, _ := strings.Cut(status, "LATEST DETECTED DEADLOCK")
			latest, _, _ = strings.Cut(latest, "\nTRANSACTIONS\n")
			n = strings.Count(latest, "`"+schemaOf(r)+"`.`transaction_log`")
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func schemaOf(r *rig) (name string) {
	r.t.Helper()
	if err := r.logDB.Open(r.t).QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
		r.t.Fatal(err)
	}
	return name
}

// One prepared statement, run repeatedly, is a write each time, with an
// entry of its own.
func TestPreparedStatementIsLoggedOnEachRun(t *testing.T) {
	t.Parallel()
	for name, staged := range map[string]bool{"immediate": false, "staged": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db, exactlyOnce)
				const n = 20
				r.account(0)
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
				stmt, err := r.wrapped.PrepareContext(ctx, r.q("UPDATE account SET balance = balance + ? WHERE id = 1"))
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
				r.wantBalances(n * (n - 1) / 2)
				r.wantNoLog()
			})
		})
	}
}
