package session

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestConnectionCutUnderAWriteIsNotReused(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"carried out": (*testproxy.Proxy).CutAfter, "not sent": (*testproxy.Proxy).CutBefore, "in flight": (*testproxy.Proxy).CutInFlight,
		} {
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db))
				r.Account(100)
				r.Wrapped.SetMaxOpenConns(1)
				first := r.Session(r.Wrapped)
				cut(p, testproxy.Text("UPDATE account"))
				if _, err := r.Wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
					t.Fatalf("%v, want it delivered by a retry", err)
				}
				if again := r.Session(r.Wrapped); again == first {
					t.Error("the pool gave the cut connection out again")
				}
				awaitEnd(r, first) // what was in flight is carried out by then
				r.Must(r.Wrapped, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
				r.WantBalances(89)
				r.WantNoLog()
			})
		}
	})
}

func TestDeadDedicatedConnectionIsNeverRedialledInPlace(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		ctx := context.Background()
		conn := r.Conn()
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
		r.WantBalances(90)
		r.WantNoLog()
	})
}

func TestTheSideConnectionIsClosedAfterTheWrite(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		p.CutBefore(testproxy.Text("UPDATE account"))
		if _, err := r.Wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		if err := r.Wrapped.Close(); err != nil {
			t.Fatal(err)
		}
		query := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
		if db.Driver == testdb.DriverPostgres {
			query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		}
		r.Bare.SetMaxOpenConns(1)
		rig.Eventually(t, "no session is left on the server", func() bool { return r.Count(query) == 0 })
	})
}

func TestFailedLogLeavesTheConnectionClean(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := errors.New("the log is down")
		var fail error
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error { return fail }}
		})
		r.Account(100, 100)
		r.Wrapped.SetMaxOpenConns(1)
		tx := r.Begin()
		r.Must(tx, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
		fail = down
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) || !errors.Is(err, down) {
			t.Errorf("Commit: %v, want ErrNotLogged because of %v", err, down)
		}
		fail = nil
		// On the same connection: it must not land in the transaction before.
		r.Must(r.Wrapped, "UPDATE account SET balance = ? WHERE id = ?", 2, 2)
		r.WantBalances(100, 2)
		r.WantNoLog()
	})
}
