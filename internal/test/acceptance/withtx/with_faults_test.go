package withtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// behindProxy puts a proxy between the application and its home.
func behindProxy(w *rig.WithRig) *testproxy.Proxy {
	w.T.Helper()
	p := testproxy.New(w.T, w.HomeDB.Addr())
	p.SpareErasing()
	via := w.HomeDB.Via(p.Addr())
	w.Home = w.Open(via.DSN)
	return p
}

// eachWithServer is eachWith for databases that are reached over a network.
func eachWithServer(t *testing.T, f func(t *testing.T, w *rig.WithRig)) {
	t.Helper()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			f(t, rig.NewWith(t, testdb.NewLog(t, db.Driver), guarantee))
		})
	})
}

func TestLostAnswerToCommitOfWithIsFoundOut(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		p := behindProxy(w)
		b := w.Begun()
		takes(b)
		b.Records(1)
		p.CutAfter(testproxy.Commit)
		err := b.Tx.Commit()
		if err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Fatalf("Commit says %v", err)
		}
		if err := b.End(); err != nil {
			t.Fatalf("End says %v", err)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestLostCommitOfWithDeliversNothing(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		p := behindProxy(w)
		b := w.Begun()
		takes(b)
		b.Records(1)
		p.CutBefore(testproxy.Commit)
		if err := b.Tx.Commit(); err == nil {
			t.Fatal("Commit succeeded")
		}
		if err := b.End(); !errors.Is(err, bedsql.ErrUnknownOutcome) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Fatalf("End says %v", err)
		}
		w.Delivers()
		w.WantBalances(100, 100)
		if n := w.AtHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

// It is an ordinary local transaction, which its own entry delivers.
func TestLostCommitOfWithWithoutEntriesIsDelivered(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		p := behindProxy(w)
		b := w.Begun()
		takes(b)
		w.Must(b.Tx, "SAVEPOINT a")
		b.Records(1)
		w.Must(b.Tx, "ROLLBACK TO SAVEPOINT a")
		p.CutBefore(testproxy.Commit)
		if err := b.Tx.Commit(); err != nil {
			t.Errorf("Commit says %v", err)
		}
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
		w.WantBalances(100, 100)
		w.WantEmpty()
	})
}

// The COMMIT is on its way while End looks for it.
func TestLateCommitOfWithIsDeliveredByTheJob(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		p := behindProxy(w)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		tx, err := w.Home.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := w.With(tx, tx)
		takes(b)
		b.Records(1)
		reached, release := p.Hold(testproxy.Commit)
		committed := make(chan error, 1)
		go func() { committed <- b.Tx.Commit() }()
		<-reached
		cancel()
		if err := <-committed; err == nil {
			t.Error("Commit succeeded")
		}
		within, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := b.Soft.End(within); bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Errorf("End says %v", err)
		}
		release()
		rig.Eventually(t, "the COMMIT has arrived", func() bool { return w.AtHome() == 99 })
		w.Drain(w.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour }))
		w.WantBalances(101, 100)
	})
}

// The job delivers, and forgets that it did; then End goes on.
func TestEndOvertakenByJobAndPurgeAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.ExactlyOnce, func(c *bedsql.Config) { c.ReceiptRetention = time.Millisecond })
		b := w.Begun()
		b.Records(1)
		b.Commit()
		w.Delivers()
		rig.Eventually(t, "the receipts have gone", func() bool {
			w.Exec("DELETE FROM bed_receipt")
			return w.Left() == 0
		})
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(101, 100)
	})
}

// A deadlock ends the transaction at home, and its entries with it.
func TestDeadlockTakesTheEntriesOfWithAlong(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *rig.WithRig) {
		b := deadlocked(w)
		for range 2 {
			if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); err == nil {
				t.Error("a write was recorded in a transaction that is gone")
			}
		}
		_ = b.Tx.Rollback()
		if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) {
			t.Errorf("End says %v", err)
		}
		if n := w.AtHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

// deadlocked is a transaction with an entry that fell victim to a deadlock. MariaDB chooses the
// transaction with less work, and PostgreSQL the one that waited first. If the other's wait began
// more than deadlock_timeout later, deadlocked tries again.
func deadlocked(w *rig.WithRig) *rig.Begun {
	w.T.Helper()
	at := &rig.Rig{T: w.T, DB: w.HomeDB, Bare: w.Bare}
	for range 20 {
		b := w.Begun()
		takes(b)
		b.Records(1)
		other, err := w.Bare.Begin()
		if err != nil {
			w.T.Fatal(err)
		}
		w.Must(other, fmt.Sprintf("INSERT INTO account SELECT id + 100, 0 FROM (%s) AS ids", numbers(200)))
		w.Must(other, "UPDATE account SET balance = balance + 1 WHERE id = 2")
		victim := make(chan error, 1)
		go func() {
			_, err := b.Tx.Exec("UPDATE account SET balance = balance + 1 WHERE id = 2")
			victim <- err
		}()
		rig.Eventually(w.T, "the transaction waits", func() bool { return at.Waiting() > 0 })
		_, otherErr := other.Exec("UPDATE account SET balance = balance + 1 WHERE id = 1")
		err = <-victim
		_ = other.Rollback()
		switch {
		case err != nil && otherErr == nil:
			return b
		case err != nil:
			w.T.Fatalf("both failed: %v; %v", err, otherErr)
		}
		_ = b.Tx.Rollback()
		b.Soft.Discard()
	}
	w.T.Fatal("the other transaction was the victim each time")
	return nil
}

// numbers is a query for 1 to n.
func numbers(n int) string {
	text := "SELECT 1 AS id"
	for i := 2; i <= n; i++ {
		text += fmt.Sprintf(" UNION ALL SELECT %d", i)
	}
	return text
}

// Each has a home from which the log cannot be reached.
func TestWithWhereTheLogIsNotAtHome(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, elsewhere := range map[string]func(t *testing.T, w *rig.WithRig){
			"another database": func(t *testing.T, w *rig.WithRig) {
				if w.HomeDB.Driver == testdb.DriverMySQL {
					w.ExecLog("RENAME TABLE bed_log TO bed_gone")
					t.Cleanup(func() { w.ExecLog("RENAME TABLE bed_gone TO bed_log") })
					return
				}
				w.Home = w.Open(rig.FreshLike(t, w.HomeDB).DSN)
				if _, err := w.Home.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
					t.Fatal(err)
				}
			},
			"another log": func(t *testing.T, w *rig.WithRig) {
				if w.HomeDB.Driver == testdb.DriverMySQL {
					w.ExecLog("UPDATE bed_log SET value = 'another' WHERE name = 'identity'")
					return
				}
				other := rig.FreshLike(t, w.HomeDB)
				storage, err := txlog.Open(context.Background(), other.Driver, other.DSN)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = storage.Close() })
				w.Home = w.Open(other.DSN)
				if _, err := w.Home.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
				elsewhere(t, w)
				b := w.Begun()
				wantNotHome(b)
				b.Commit()
				if err := b.End(); err != nil {
					t.Errorf("End says %v", err)
				}
				w.WantBalances(100, 100)
			})
		}
	})
}

// The other server may have a log of its own, under the same names.
func TestWithOnAnotherServerIsNotHome(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		private := testdb.PrivateMariaDB
		if db.Driver == testdb.DriverPostgres {
			private = testdb.PrivatePostgres
		}
		server := private(t)
		for name, hasLog := range map[string]bool{"without a log": false, "with a log of its own": true} {
			{
				t.Run(name, func(t *testing.T) {
					w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
					w.HomeDB = server.DB(t)
					if db.Driver == testdb.DriverMySQL {
						server.Exec("CREATE DATABASE " + w.LogDB.Name)
						log, err := mysql.ParseDSN(w.HomeDB.DSN)
						if err != nil {
							t.Fatal(err)
						}
						log.DBName = w.LogDB.Name
						w.HomeDB.DSN = log.FormatDSN()
					}
					w.Home = w.Open(w.HomeDB.DSN)
					if hasLog {
						storage, err := txlog.Open(context.Background(), w.HomeDB.Driver, w.HomeDB.DSN)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { _ = storage.Close() })
					}
					if _, err := w.HomeDB.Open(t).Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
						t.Fatal(err)
					}
					b := w.Begun()
					wantNotHome(b)
					b.Commit()
					if err := b.End(); err != nil {
						t.Errorf("End says %v", err)
					}
					w.WantBalances(100, 100)
					w.WantEmpty()
				})
			}
		}
	})
}

// wantNotHome wants a write to be refused, and the transaction to go on.
func wantNotHome(b *rig.Begun) {
	b.T.Helper()
	for range 2 {
		_, err := b.Rig.Wrapped.ExecContext(b.Ctx, b.Q(rig.Increment), 1, 1)
		var not *bedsql.LogElsewhereError
		if !errors.As(err, &not) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || not.Log == "" {
			b.T.Fatalf("the write says %v", err)
		}
	}
	if _, err := b.Tx.Exec("INSERT INTO account VALUES (77, 7)"); err != nil {
		b.T.Errorf("the transaction does not go on: %v", err)
	}
}

func TestWithNeedsRightsOnTheLog(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, lacks := range []string{"everything", "INSERT", "SELECT"} {
			w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
			name := fmt.Sprintf("w%d", time.Now().UnixNano()%1e12)
			var statements []string
			if db.Driver == testdb.DriverMySQL {
				log := w.LogDB.Name
				statements = []string{"CREATE USER " + name + " IDENTIFIED BY 'pw'", "GRANT ALL ON " + w.HomeDB.Name + ".* TO " + name}
				for _, right := range []string{"SELECT", "INSERT"} {
					if right != lacks && lacks != "everything" {
						statements = append(statements, fmt.Sprintf("GRANT %s ON %s.* TO %s", right, log, name))
					}
				}
				t.Cleanup(func() { _, _ = w.Bare.Exec("DROP USER " + name) })
			} else {
				statements = []string{"CREATE ROLE " + name, "GRANT ALL ON account TO " + name}
				for _, right := range []string{"SELECT", "INSERT"} {
					if right != lacks && lacks != "everything" {
						statements = append(statements, fmt.Sprintf("GRANT %s ON transaction_log, bed_log TO %s", right, name))
					}
				}
			}
			for _, s := range statements {
				if _, err := w.Bare.Exec(s); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
			}
			tx := as(w, name)
			b := w.With(tx, tx)
			wantNotHome(b)
			if err := b.Tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

// as begins a transaction at home of another account.
func as(w *rig.WithRig, account string) *sql.Tx {
	w.T.Helper()
	dsn := rig.WithParam(w.HomeDB, "role", account).DSN
	if w.HomeDB.Driver == testdb.DriverMySQL {
		cfg, err := mysql.ParseDSN(w.HomeDB.DSN)
		if err != nil {
			w.T.Fatal(err)
		}
		cfg.User, cfg.Passwd = account, "pw"
		dsn = cfg.FormatDSN()
	} else {
		w.T.Cleanup(func() {
			_, _ = w.Bare.Exec("DROP OWNED BY " + account)
			_, _ = w.Bare.Exec("DROP ROLE " + account)
		})
	}
	tx, err := w.Open(dsn).Begin()
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = tx.Rollback() })
	return tx
}
