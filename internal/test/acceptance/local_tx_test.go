package acceptance

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

const setBalance = "UPDATE account SET balance = ? WHERE id = ?"

func TestUnansweredCommitIsDeliveredWholeByTheRetry(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"committed":     (*testproxy.Proxy).CutAfter,
			"not committed": (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db))
				r.account(1, 2)
				tx := r.begin()
				r.must(tx, setBalance, 10, 1)
				r.must(tx, setBalance, 20, 2)
				r.wantNoLog() // not before COMMIT
				cut(p, testproxy.Text("COMMIT"))
				if err := tx.Commit(); err != nil {
					t.Fatalf("Commit: %v", err)
				}
				r.wantBalances(10, 20)
				r.wantNoLog()
			})
		}
	})
}

func TestUnansweredCommitIsDeliveredWholeByTheJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, setBalance, 20, 2)
		p.CutBefore(testproxy.Text("COMMIT"))
		pending := wantPending(t, tx.Commit())
		u := r.wantOneLog()
		if u.ID != pending.EntryID || len(u.Statements) != 2 || !u.InDoubt || u.NotReplayable != "" || u.Parked {
			t.Errorf("the log holds %+v, want the unit %s with both statements, in doubt and replayable", u, pending.EntryID)
		}
		r.wantBalances(1, 2)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(10, 20)
		r.wantNoLog()
	})
}

func TestReplayIsAllOrNothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "INSERT INTO account VALUES (3, 3)")
		p.CutBefore(testproxy.Text("COMMIT"))
		wantPending(t, tx.Commit())
		// The second statement's column is gone: the first must not stay alone.
		r.exec("ALTER TABLE account RENAME COLUMN balance TO amount",
			"ALTER TABLE account ADD balance INT", "ALTER TABLE account ADD CHECK (id < 3)")
		if report := r.runOnce(); report.Delivered != 0 || report.Parked != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if n := r.count("SELECT COUNT(*) FROM account WHERE balance = 10"); n != 0 {
			t.Error("the first statement of the unit was applied without the second")
		}
	})
}

func TestARolledBackTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.wantNoLog()
		// The connection of the pool holds no transaction: this is logged and committed.
		r.must(r.wrapped, setBalance, 11, 1)
		r.wantBalances(11)
		r.wantNoLog()
		if n := r.counters.Delivered.Load(); n != 1 {
			t.Errorf("%d writes were counted as delivered, want 1", n)
		}
	})
}

func TestRollbackToASavepointTruncatesTheUnit(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2, 3, 4, 5)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "SAVEPOINT sp0x1") // gorm's words
		r.must(tx, setBalance, 20, 2)
		r.must(tx, "ROLLBACK TO SAVEPOINT sp0x1")
		r.must(tx, setBalance, 30, 3)
		r.must(tx, "SAVEPOINT Outer_")
		r.must(tx, "SAVEPOINT inner_")
		r.must(tx, setBalance, 40, 4)
		r.must(tx, "ROLLBACK TO outer_")
		r.must(tx, "RELEASE SAVEPOINT outer_")
		r.must(tx, setBalance, 50, 5)
		p.CutBefore(testproxy.Text("COMMIT"))
		wantPending(t, tx.Commit())
		if u := r.wantOneLog(); len(u.Statements) != 3 || u.NotReplayable != "" {
			t.Errorf("the unit has %d statements and is not replayable because of %q, want 3 and replayable", len(u.Statements), u.NotReplayable)
		}
		r.runOnce()
		r.wantBalances(10, 2, 30, 4, 50)
		r.wantNoLog()
	})
}

func TestAbortedPostgresTransactionContinuesFromItsSavepoint(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.Postgres(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "SAVEPOINT a")
	r.fails(tx, "UPDATE account SET nosuch = 1")
	r.must(tx, "ROLLBACK TO a")
	r.must(tx, setBalance, 20, 2)
	p.CutAfter(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want 2", len(u.Statements))
	}
}

func TestUnloggableTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigLogBehindProxy(t, db)
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		p.Refuse()
		p.CutAll()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(1)
		p.Accept()
		r.must(r.wrapped, setBalance, 11, 1)
		r.wantBalances(11) // seen by others: there was no open transaction in the pool
		r.wantNoLog()
	})
}

func TestAClosedLogRollsBackOnEveryDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		_ = r.storage.Close()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(1)
		if _, err := r.wrapped.ExecContext(bedsql.Unlogged(context.Background()), r.q(setBalance), 11, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(11)
	})
}

// An argument that does not fit fails in the driver: the server has heard
// nothing, and its transaction is as good as before.
func TestMisfitArgumentDoesNotAbortTheUnit(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.Postgres(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.fails(tx, setBalance, int64(1)<<40, 2)
	p.CutAfter(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want 1", len(u.Statements))
	}
	r.wantBalances(10, 2)
}

// A COMMIT that the caller's context forbade at the last moment is not sent,
// and the connection does not go back to the pool with its transaction.
func TestEndedContextsCommitLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		ctx, end := context.WithCancel(context.Background())
		defer end()
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, afterAdd: end}
		})
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		tx, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, setBalance, 10, 1)
		wantPending(t, tx.Commit())
		r.wantBalances(1)
		// Outside of any transaction, so that others see it.
		if _, err := r.wrapped.ExecContext(bedsql.Unlogged(context.Background()), r.q(setBalance), 5, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(5)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(10)
		r.wantNoLog()
	})
}
