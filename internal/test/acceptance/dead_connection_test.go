package acceptance

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestConnectionCutUnderAWriteIsNotReused(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"carried out": (*testproxy.Proxy).CutAfter, "not sent": (*testproxy.Proxy).CutBefore, "in flight": (*testproxy.Proxy).CutInFlight,
		} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db))
				r.account(100)
				r.wrapped.SetMaxOpenConns(1)
				first := r.session(r.wrapped)
				cut(p, testproxy.Text("UPDATE account"))
				if _, err := r.wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
					t.Fatalf("%v, want it delivered by a retry", err)
				}
				if again := r.session(r.wrapped); again == first {
					t.Error("the pool gave the cut connection out again")
				}
				r.must(r.wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
				r.wantBalances(89)
				r.wantNoLog()
			})
		}
	})
}

func TestDeadDedicatedConnectionIsNeverRedialledInPlace(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		ctx := context.Background()
		conn := r.conn()
		if err := conn.PingContext(ctx); err != nil {
			t.Fatal(err)
		}
		p.CutBefore(testproxy.Text("UPDATE account"))
		// It is delivered, by a connection on the side.
		if _, err := conn.ExecContext(ctx, "UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		dialled := p.Accepted()
		if err := conn.QueryRowContext(ctx, "SELECT 1").Scan(new(int)); err == nil {
			t.Error("a query succeeded on a connection whose session is gone")
		}
		if _, err := conn.BeginTx(ctx, nil); err == nil {
			t.Error("a transaction was begun on a connection whose session is gone")
		}
		if n := p.Accepted(); n != dialled {
			t.Errorf("%d connections were dialled in its place", n-dialled)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

func TestTheSideConnectionIsClosedAfterTheWrite(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		p.CutBefore(testproxy.Text("UPDATE account"))
		if _, err := r.wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		if err := r.wrapped.Close(); err != nil {
			t.Fatal(err)
		}
		query := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
		if db.Driver == testdb.DriverPostgres {
			query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		}
		r.bare.SetMaxOpenConns(1)
		eventually(t, "no session is left on the server", func() bool { return r.count(query) == 0 })
	})
}

func TestFailedLogLeavesTheConnectionClean(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := errors.New("the log is down")
		var fail error
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error { return fail }}
		})
		r.account(100, 100)
		r.wrapped.SetMaxOpenConns(1)
		tx := r.begin()
		r.must(tx, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
		fail = down
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) || !errors.Is(err, down) {
			t.Errorf("Commit: %v, want ErrNotLogged because of %v", err, down)
		}
		fail = nil
		// On the same connection: it must not land in the transaction before.
		r.must(r.wrapped, "UPDATE account SET balance = ? WHERE id = ?", 2, 2)
		r.wantBalances(100, 2)
		r.wantNoLog()
	})
}
