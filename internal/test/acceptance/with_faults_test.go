package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// behindProxy puts a proxy between the application and its home.
func (w *withRig) behindProxy() *testproxy.Proxy {
	w.t.Helper()
	p := testproxy.New(w.t, w.homeDB.Addr())
	via := w.homeDB.Via(p.Addr())
	if w.seen {
		w.home = w.open(via.DSN)
	} else {
		w.home = via.Open(w.t)
	}
	return p
}

// eachWithServer is eachWith for databases that are reached over a network.
func eachWithServer(t *testing.T, f func(t *testing.T, w *withRig)) {
	t.Helper()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, wrapped := range map[string]bool{"bare": false, "wrapped": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
					f(t, newWith(t, freshLike(t, db), wrapped, guarantee))
				})
			})
		}
	})
}

func TestLostAnswerToCommitOfWithIsFoundOut(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *withRig) {
		p := w.behindProxy()
		b := w.begun()
		b.takes()
		b.records(1)
		p.CutAfter(testproxy.Commit)
		err := b.tx.Commit()
		if err == nil || w.seen && bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Fatalf("Commit says %v", err)
		}
		if err := b.end(); err != nil {
			t.Fatalf("End says %v", err)
		}
		w.wantBalances(101, 100)
		w.wantEmpty()
		if n := w.atHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestLostCommitOfWithDeliversNothing(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *withRig) {
		p := w.behindProxy()
		b := w.begun()
		b.takes()
		b.records(1)
		p.CutBefore(testproxy.Commit)
		if err := b.tx.Commit(); err == nil {
			t.Fatal("Commit succeeded")
		}
		if err := b.end(); !errors.Is(err, bedsql.ErrUnknownOutcome) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Fatalf("End says %v", err)
		}
		w.delivers()
		w.wantBalances(100, 100)
		if n := w.atHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

// The log has no trace from which End could find out.
func TestLostCommitOfWithWithoutEntriesIsUnknown(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *withRig) {
		if !w.seen {
			return
		}
		p := w.behindProxy()
		b := w.begun()
		b.takes()
		w.must(b.tx, "SAVEPOINT a")
		b.records(1)
		w.must(b.tx, "ROLLBACK TO SAVEPOINT a")
		p.CutBefore(testproxy.Commit)
		if err := b.tx.Commit(); err == nil {
			t.Fatal("Commit succeeded")
		}
		if err := b.end(); !errors.Is(err, bedsql.ErrUnknownOutcome) {
			t.Errorf("End says %v", err)
		}
		w.wantBalances(100, 100)
	})
}

// The COMMIT is on its way while End looks for it.
func TestLateCommitOfWithIsDeliveredByTheJob(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *withRig) {
		p := w.behindProxy()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		tx, err := w.home.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := w.with(tx, tx)
		b.takes()
		b.records(1)
		reached, release := p.Hold(testproxy.Commit)
		committed := make(chan error, 1)
		go func() { committed <- b.tx.Commit() }()
		<-reached
		if w.seen {
			cancel() // a bare driver would wait for the answer
			if err := <-committed; err == nil {
				t.Error("Commit succeeded")
			}
		}
		within, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := b.soft.End(within); bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Errorf("End says %v", err)
		}
		release()
		if !w.seen {
			<-committed
		}
		eventually(t, "the COMMIT has arrived", func() bool { return w.atHome() == 99 })
		w.drain(w.job(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour }))
		w.wantBalances(101, 100)
	})
}

// The job delivers, and forgets that it did; then End goes on.
func TestEndOvertakenByJobAndPurgeAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, wrapped := range map[string]bool{"bare": false, "wrapped": true} {
			if wrapped && db.Driver == testdb.DriverSQLite {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWith(t, freshLike(t, db), wrapped, exactlyOnce, func(c *bedsql.Config) { c.ReceiptRetention = time.Millisecond })
				b := w.begun()
				b.records(1)
				b.commit()
				w.delivers()
				eventually(t, "the receipts have gone", func() bool {
					w.exec("DELETE FROM bed_receipt")
					return w.left() == 0
				})
				if err := b.end(); wrapped && err != nil || !wrapped && err != nil && bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
					t.Errorf("End says %v", err)
				}
				w.wantBalances(101, 100)
			})
		}
	})
}

// A deadlock ends the transaction at home, and its entries with it.
func TestDeadlockTakesTheEntriesOfWithAlong(t *testing.T) {
	t.Parallel()
	eachWithServer(t, func(t *testing.T, w *withRig) {
		b := w.deadlocked()
		for range 2 {
			if _, err := w.rig.wrapped.ExecContext(b.ctx, w.q(increment), 1, 1); err == nil {
				t.Error("a write was recorded in a transaction that is gone")
			}
		}
		_ = b.tx.Rollback()
		if err := b.end(); err == nil && w.seen {
			t.Error("End reports nothing")
		}
		if n := w.atHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

// deadlocked is a transaction with an entry that fell victim to a deadlock. MariaDB chooses the
// transaction with less work, and PostgreSQL the one that waited first. If the other's wait began
// more than deadlock_timeout later, deadlocked tries again.
func (w *withRig) deadlocked() *begun {
	w.t.Helper()
	at := &rig{t: w.t, db: w.homeDB, bare: w.bare}
	for range 20 {
		b := w.begun()
		b.takes()
		b.records(1)
		other, err := w.bare.Begin()
		if err != nil {
			w.t.Fatal(err)
		}
		w.must(other, fmt.Sprintf("INSERT INTO account SELECT id + 100, 0 FROM (%s) AS ids", numbers(200)))
		w.must(other, "UPDATE account SET balance = balance + 1 WHERE id = 2")
		victim := make(chan error, 1)
		go func() {
			_, err := b.tx.Exec("UPDATE account SET balance = balance + 1 WHERE id = 2")
			victim <- err
		}()
		eventually(w.t, "the transaction waits", func() bool { return at.waiting() > 0 })
		_, otherErr := other.Exec("UPDATE account SET balance = balance + 1 WHERE id = 1")
		err = <-victim
		_ = other.Rollback()
		switch {
		case err != nil && otherErr == nil:
			return b
		case err != nil:
			w.t.Fatalf("both failed: %v; %v", err, otherErr)
		}
		_ = b.tx.Rollback()
		b.soft.Discard()
	}
	w.t.Fatal("the other transaction was the victim each time")
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
		for name, elsewhere := range map[string]func(t *testing.T, w *withRig){
			"another database": func(t *testing.T, w *withRig) {
				if w.homeDB.Driver == testdb.DriverMySQL {
					w.execLog("RENAME TABLE bed_log TO bed_gone")
					t.Cleanup(func() { w.execLog("RENAME TABLE bed_gone TO bed_log") })
					return
				}
				w.home = freshLike(t, w.homeDB).Open(t)
				if _, err := w.home.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
					t.Fatal(err)
				}
			},
			"another log": func(t *testing.T, w *withRig) {
				if w.homeDB.Driver == testdb.DriverMySQL {
					w.execLog("UPDATE bed_log SET value = 'another' WHERE name = 'identity'")
					return
				}
				other := freshLike(t, w.homeDB)
				storage, err := txlog.Open(context.Background(), other.Driver, other.DSN)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = storage.Close() })
				w.home = other.Open(t)
				if _, err := w.home.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
					t.Fatal(err)
				}
			},
		} {
			for _, wrapped := range []bool{false, true} {
				if wrapped && (db.Driver != testdb.DriverMySQL) {
					continue
				}
				t.Run(fmt.Sprint(name, " wrapped ", wrapped), func(t *testing.T) {
					w := newWith(t, freshLike(t, db), wrapped)
					elsewhere(t, w)
					b := w.begun()
					b.wantNotHome()
					b.commit()
					if err := b.end(); err != nil {
						t.Errorf("End says %v", err)
					}
					w.wantBalances(100, 100)
				})
			}
		}
	})
}

// The other server may have a log of its own, under the same names.
func TestWithOnAnotherServerIsNotHome(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		private := testdb.PrivateMariaDB
		if db.Driver == testdb.DriverPostgres {
			private = testdb.PrivatePostgres
		}
		server := private(t)
		for name, hasLog := range map[string]bool{"without a log": false, "with a log of its own": true} {
			for _, wrapped := range []bool{false, true} {
				t.Run(fmt.Sprint(name, " wrapped ", wrapped), func(t *testing.T) {
					w := newWith(t, freshLike(t, db), false)
					w.homeDB = server.DB(t)
					if db.Driver == testdb.DriverMySQL {
						server.Exec("CREATE DATABASE " + w.logDB.Name)
						log, err := mysql.ParseDSN(w.homeDB.DSN)
						if err != nil {
							t.Fatal(err)
						}
						log.DBName = w.logDB.Name
						w.homeDB.DSN = log.FormatDSN()
					}
					w.home = w.homeDB.Open(t)
					if wrapped {
						w.home = w.open(w.homeDB.DSN)
					}
					if hasLog {
						storage, err := txlog.Open(context.Background(), w.homeDB.Driver, w.homeDB.DSN)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { _ = storage.Close() })
					}
					if _, err := w.homeDB.Open(t).Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"); err != nil {
						t.Fatal(err)
					}
					b := w.begun()
					b.wantNotHome()
					b.commit()
					if err := b.end(); err != nil {
						t.Errorf("End says %v", err)
					}
					w.wantBalances(100, 100)
					w.wantEmpty()
				})
			}
		}
	})
}

// wantNotHome wants a write to be refused, and the transaction to go on.
func (b *begun) wantNotHome() {
	b.t.Helper()
	for range 2 {
		_, err := b.rig.wrapped.ExecContext(b.ctx, b.q(increment), 1, 1)
		var not *bedsql.LogElsewhereError
		if !errors.As(err, &not) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || not.Log == "" {
			b.t.Fatalf("the write says %v", err)
		}
	}
	if _, err := b.tx.Exec("INSERT INTO account VALUES (77, 7)"); err != nil {
		b.t.Errorf("the transaction does not go on: %v", err)
	}
}

func TestWithNeedsRightsOnTheLog(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, lacks := range []string{"everything", "INSERT", "UPDATE"} {
			w := newWith(t, freshLike(t, db), false)
			name := fmt.Sprintf("w%d", time.Now().UnixNano()%1e12)
			var statements []string
			if db.Driver == testdb.DriverMySQL {
				log := w.logDB.Name
				statements = []string{"CREATE USER " + name + " IDENTIFIED BY 'pw'", "GRANT ALL ON " + w.homeDB.Name + ".* TO " + name}
				for _, right := range []string{"SELECT", "INSERT", "UPDATE"} {
					if right != lacks && lacks != "everything" {
						statements = append(statements, fmt.Sprintf("GRANT %s ON %s.* TO %s", right, log, name))
					}
				}
				t.Cleanup(func() { _, _ = w.bare.Exec("DROP USER " + name) })
			} else {
				statements = []string{"CREATE ROLE " + name, "GRANT ALL ON account TO " + name}
				for _, right := range []string{"SELECT", "INSERT", "UPDATE"} {
					if right != lacks && lacks != "everything" {
						statements = append(statements, fmt.Sprintf("GRANT %s ON transaction_log, bed_log TO %s", right, name))
					}
				}
			}
			for _, s := range statements {
				if _, err := w.bare.Exec(s); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
			}
			tx := w.as(name)
			b := w.with(tx, tx)
			b.wantNotHome()
			if err := b.tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

// as begins a transaction at home of another account.
func (w *withRig) as(account string) *sql.Tx {
	w.t.Helper()
	pool := w.bare
	if w.homeDB.Driver == testdb.DriverMySQL {
		cfg, err := mysql.ParseDSN(w.homeDB.DSN)
		if err != nil {
			w.t.Fatal(err)
		}
		cfg.User, cfg.Passwd = account, "pw"
		limited := w.homeDB
		limited.DSN = cfg.FormatDSN()
		pool = limited.Open(w.t)
	}
	tx, err := pool.Begin()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback() })
	if w.homeDB.Driver == testdb.DriverPostgres {
		w.must(tx, "SET LOCAL ROLE "+account)
		w.t.Cleanup(func() {
			_, _ = w.bare.Exec("DROP OWNED BY " + account)
			_, _ = w.bare.Exec("DROP ROLE " + account)
		})
	}
	return tx
}
