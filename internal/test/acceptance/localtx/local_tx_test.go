package localtx

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestUnansweredCommitIsDeliveredWholeByTheRetry(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"committed":     (*testproxy.Proxy).CutAfter,
			"not committed": (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db))
				r.Account(1, 2)
				tx := r.Begin()
				r.Must(tx, rig.SetBalance, 10, 1)
				r.Must(tx, rig.SetBalance, 20, 2)
				r.WantNoLog() // not before COMMIT
				cut(p, testproxy.Commit)
				if err := tx.Commit(); err != nil {
					t.Fatalf("Commit: %v", err)
				}
				r.WantBalances(10, 20)
				r.WantNoLog()
			})
		}
	})
}

func TestUnansweredCommitIsDeliveredWholeByTheJob(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1, 2)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, rig.SetBalance, 20, 2)
		p.CutBefore(testproxy.Commit)
		pending := rig.WantPending(t, tx.Commit())
		u := r.WantOneLog()
		if u.ID != pending.EntryID || len(u.Statements) != 2 || !u.InDoubt || u.NotReplayable != "" || u.Parked {
			t.Errorf("the log holds %+v, want the unit %s with both statements, in doubt and replayable", u, pending.EntryID)
		}
		r.WantBalances(1, 2)
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.WantBalances(10, 20)
		r.WantNoLog()
	})
}

func TestReplayIsAllOrNothing(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1, 2)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, "INSERT INTO account VALUES (3, 3)")
		p.CutBefore(testproxy.Commit)
		rig.WantPending(t, tx.Commit())
		// The second statement's column is gone: the first must not stay alone.
		r.RenameBalance()
		r.Exec("ALTER TABLE account ADD balance INT", "ALTER TABLE account ADD CHECK (id < 3)")
		if report := r.RunOnce(); report.Delivered != 0 || report.Parked != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if n := r.Count("SELECT COUNT(*) FROM account WHERE balance = 10"); n != 0 {
			t.Error("the first statement of the unit was applied without the second")
		}
	})
}

func TestARolledBackTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.WantNoLog()
		// The connection of the pool holds no transaction: this is logged and committed.
		r.Must(r.Wrapped, rig.SetBalance, 11, 1)
		r.WantBalances(11)
		r.WantNoLog()
		if n := r.Counters.Delivered.Load(); n != 1 {
			t.Errorf("%d writes were counted as delivered, want 1", n)
		}
	})
}

func TestRollbackToASavepointTruncatesTheUnit(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1, 2, 3, 4, 5)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, "SAVEPOINT sp0x1") // gorm's words
		r.Must(tx, rig.SetBalance, 20, 2)
		r.Must(tx, "ROLLBACK TO SAVEPOINT sp0x1")
		r.Must(tx, rig.SetBalance, 30, 3)
		r.Must(tx, "SAVEPOINT Outer_")
		r.Must(tx, "SAVEPOINT inner_")
		r.Must(tx, rig.SetBalance, 40, 4)
		r.Must(tx, "ROLLBACK TO outer_")
		r.Must(tx, "RELEASE SAVEPOINT outer_")
		r.Must(tx, rig.SetBalance, 50, 5)
		p.CutBefore(testproxy.Commit)
		rig.WantPending(t, tx.Commit())
		if u := r.WantOneLog(); len(u.Statements) != 3 || u.NotReplayable != "" {
			t.Errorf("the unit has %d statements and is not replayable because of %q, want 3 and replayable", len(u.Statements), u.NotReplayable)
		}
		r.RunOnce()
		r.WantBalances(10, 2, 30, 4, 50)
		r.WantNoLog()
	})
}

func TestAbortedPostgresTransactionContinuesFromItsSavepoint(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.Postgres(t), rig.NoSyncRetry)
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Must(tx, "SAVEPOINT a")
	r.Fails(tx, "UPDATE account SET nosuch = 1")
	r.Must(tx, "ROLLBACK TO a")
	r.Must(tx, rig.SetBalance, 20, 2)
	p.CutAfter(testproxy.Commit)
	rig.WantPending(t, tx.Commit())
	if u := r.WantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want 2", len(u.Statements))
	}
}

func TestUnloggableTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db)
		r.Wrapped.SetMaxOpenConns(1)
		r.Account(1)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		p.Refuse()
		p.CutAll()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.WantBalances(1)
		p.Accept()
		r.Must(r.Wrapped, rig.SetBalance, 11, 1)
		r.WantBalances(11) // seen by others: there was no open transaction in the pool
		r.WantNoLog()
	})
}

func TestAClosedLogRollsBackOnEveryDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Wrapped.SetMaxOpenConns(1)
		r.Account(1)
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		_ = r.Storage.Close()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.WantBalances(1)
		if _, err := r.Wrapped.ExecContext(bedsql.Unlogged(context.Background()), r.Q(rig.SetBalance), 11, 1); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(11)
	})
}

// An argument that does not fit fails in the driver: the server has heard
// nothing, and its transaction is as good as before.
func TestMisfitArgumentDoesNotAbortTheUnit(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.Postgres(t), rig.NoSyncRetry)
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Fails(tx, rig.SetBalance, int64(1)<<40, 2)
	p.CutAfter(testproxy.Commit)
	rig.WantPending(t, tx.Commit())
	if u := r.WantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want 1", len(u.Statements))
	}
	r.WantBalances(10, 2)
}

// A COMMIT that the caller's context forbade at the last moment is not sent,
// and the connection does not go back to the pool with its transaction.
func TestEndedContextsCommitLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		ctx, end := context.WithCancel(context.Background())
		defer end()
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, AfterAdd: end}
		})
		r.Wrapped.SetMaxOpenConns(1)
		r.Account(1)
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, rig.SetBalance, 10, 1)
		rig.WantPending(t, tx.Commit())
		r.WantBalances(1)
		// Outside of any transaction, so that others see it.
		if _, err := r.Wrapped.ExecContext(bedsql.Unlogged(context.Background()), r.Q(rig.SetBalance), 5, 1); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(5)
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.WantBalances(10)
		r.WantNoLog()
	})
}
