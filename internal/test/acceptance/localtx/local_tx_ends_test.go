package localtx

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// MySQL checks much of a statement before it commits on the statement's
// behalf: what fails there has ended nothing.
func TestDDLThatFailsBeforeItsCommitEndsNothing(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	for name, ddl := range map[string]struct {
		text string
		args []any
	}{
		"unknown character set": {text: "CREATE TABLE other (a VARCHAR(10) CHARACTER SET nonesuch)"},
		"too big a precision":   {text: "CREATE TABLE other (a DECIMAL(99, 2))"},
		"a variable in a view":  {text: "CREATE VIEW other AS SELECT @a"},
		"not prepared":          {text: "CREATE TABLE other AS SELECT id FROM nonesuch WHERE id = ?", args: []any{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.FreshLike(t, db))
			r.Account(1, 2)
			tx := r.Begin()
			r.Must(tx, rig.SetBalance, 10, 1)
			var my *mysql.MySQLError
			if err := r.Fails(tx, ddl.text, ddl.args...); !errors.As(err, &my) {
				t.Errorf("the error is %v, want the driver's own", err)
			}
			r.Must(tx, rig.SetBalance, 20, 2)
			r.WantBalances(1, 2)
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			r.WantBalances(1, 2)
			if n := r.Counters.Delivered.Load(); n != 0 {
				t.Errorf("%d writes were counted as delivered, and all were rolled back", n)
			}
			r.WantNoLog()
		})
	}
}

// A COMMIT that was not sent leaves its transaction open on the server. The
// unit is the job's now: a second COMMIT must not apply it as well.
func TestTransactionLeftToTheJobCannotBeCommitted(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &endsAfterAdd{c.Storage, cancel}
		})
		r.Account(100)
		conn := r.Conn()
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
		rig.WantPending(t, tx.Commit())
		// Whatever the answer to it is.
		_, _ = conn.ExecContext(context.Background(), "COMMIT")
		_ = conn.Close()
		r.RunOnce()
		r.WantBalances(99)
		r.WantNoLog()
	})
}

// endsAfterAdd ends the caller's context when the log is written.
type endsAfterAdd struct {
	txlog.Storage
	end context.CancelFunc
}

func (s *endsAfterAdd) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	err := s.Storage.Add(ctx, lease, units...)
	s.end()
	return err
}

// SQLite has rolled back by itself, and says so to a ROLLBACK by an error.
func TestRollbackWithoutTransactionEndsTheLostOne(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Fails(tx, "INSERT OR ROLLBACK INTO account VALUES (2, 0)")
	if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	r.Fails(tx, "ROLLBACK")
	r.Must(tx, rig.SetBalance, 21, 2)
	_ = tx.Rollback()
	r.WantBalances(1, 21)
	r.WantNoLog()
}

// In a soft transaction, End reports the pending unit, but not the statement that implicitly
// committed it.
func TestSyntaxErrorInAUnitIsReturned(t *testing.T) {
	t.Parallel()
	gone := errors.New("the log is gone")
	r := rig.New(t, testdb.MySQL(t), func(c *bedsql.Config) {
		c.Storage = &rig.HookedStorage{Storage: c.Storage, OnRemove: func([]*entry.Unit) error { return gone }}
		c.Lease = 5 * time.Second
	})
	r.Account(1, 2)
	ctx, soft, err := bedsql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := r.Wrapped.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Must(tx, "UPDATE account SET balance = balance - 1 WHERE id = 1")
	if _, err := tx.ExecContext(ctx, "CREATE TABLE (((("); err == nil {
		t.Error("a syntax error is reported as a success")
	}
	// The unit is the job's: it must not be committed besides.
	_ = tx.Commit()
	if err := soft.End(ctx); !errors.Is(err, bedsql.ErrPending) {
		t.Errorf("End: %v, want ErrPending", err)
	}
	r.WantBalances(1)
	rig.Eventually(t, "the job delivers it", func() bool { return r.RunOnce().Delivered > 0 })
	r.WantBalances(0)
	r.WantNoLog()
}

// A connection broken in the job's pool between two rounds does not count as a try of the next
// unit.
func TestDeadPooledConnectionIsNotATry(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1)
		job := r.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 })
		for n := 10; n < 12; n++ {
			p.CutBefore(testproxy.Text("UPDATE"))
			rig.WantPending(t, r.Fails(r.Wrapped, rig.SetBalance, n, 1))
			p.CutAll()
			report, err := job.RunOnce(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if report.Delivered != 1 {
				t.Errorf("report %v, want the unit delivered", report)
			}
			r.WantBalances(n)
			r.WantNoLog()
		}
	})
}

// A statement whose context ended before sending has broken nothing. COMMIT still commits the rest
// of the transaction.
func TestUnsentStatementKeepsTheCommitLogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var logged []*entry.Unit
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func(units []*entry.Unit) error {
				logged = append(logged, units...)
				return nil
			}}
		})
		r.Account(1, 2)
		ended, end := context.WithCancel(context.Background())
		end()
		// database/sql asks the context too, but a moment before the driver does.
		err := r.Conn().Raw(func(dc any) error {
			c := dc.(*bedsql.Conn)
			tx, err := c.BeginTx(context.Background(), driver.TxOptions{})
			if err != nil {
				return err
			}
			if _, err := c.ExecContext(context.Background(), "UPDATE account SET balance = 10 WHERE id = 1", nil); err != nil {
				return err
			}
			if _, err := c.ExecContext(ended, "UPDATE account SET balance = 20 WHERE id = 2", nil); err == nil {
				t.Error("a statement ran under an ended context")
			}
			return tx.Commit()
		})
		if err != nil {
			t.Error(err)
		}
		r.WantBalances(10, 2)
		if len(logged) != 1 || len(logged[0].Statements) != 1 || logged[0].NotReplayable != "" {
			t.Errorf("logged: %+v, want one replayable unit with one statement", logged)
		}
		r.WantNoLog()
	})
}

func TestARollbackWhoseContextEndedRollsBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Wrapped.SetMaxOpenConns(1)
		r.Account(1)
		conn := r.Conn()
		r.Must(conn, "BEGIN")
		r.Must(conn, rig.SetBalance, 10, 1)
		ended, end := context.WithCancel(context.Background())
		end()
		// database/sql asks the context too, but a moment before the driver does.
		if err := conn.Raw(func(dc any) error {
			_, err := dc.(*bedsql.Conn).ExecContext(ended, "ROLLBACK", nil)
			return err
		}); err == nil {
			t.Error("a statement ran under an ended context")
		}
		_ = conn.Close()
		r.Must(r.Wrapped, "UPDATE account SET balance = balance + 4 WHERE id = 1")
		r.WantBalances(5)
		r.WantNoLog()
	})
}
