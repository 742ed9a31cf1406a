package acceptance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

// panicking is a connector with a driver that panics once, at a statement containing a text.
type panicking struct {
	driver.Connector
	at    atomic.Pointer[string]
	dials atomic.Int64
}

func (c *panicking) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c.dials.Add(1)
	return &panickingConn{Conn: inner, c: c}, nil
}

// panicAt has the next statement with a text panic.
func (c *panicking) panicAt(text string) { c.at.Store(&text) }

type panickingConn struct {
	driver.Conn
	c *panicking
}

func (c *panickingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if at := c.c.at.Load(); at != nil && strings.Contains(query, *at) && c.c.at.CompareAndSwap(at, nil) {
		panic("the driver's")
	}
	res, _, err := attempt.Exec(ctx, c.Conn, query, args)
	return res, err
}

func (c *panickingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, _, err := attempt.Query(ctx, c.Conn, query, args)
	return rows, err
}

func (c *panickingConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return attempt.BeginTx(ctx, c.Conn, opts)
}

// openPanicking opens the target through c, with a round trip for each statement.
func (r *rig) openPanicking() (c *panicking, pool *sql.DB) {
	r.t.Helper()
	tgt := targetOf(r.t, r.db)
	c = &panicking{Connector: tgt.Connector}
	tgt.Connector, tgt.Dialect = c, stepwise(tgt.Dialect)
	return c, r.openTarget(tgt)
}

// wantPanic calls f and expects the driver's unchanged panic.
func wantPanic(t testing.TB, f func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != "the driver's" {
			t.Errorf("the panic is %v, want the driver's", p)
		}
	}()
	f()
}

func TestAPanicOfTheDriverLosesNoWrite(t *testing.T) {
	t.Parallel()
	const second = "UPDATE account SET balance = balance + 1 WHERE id = 2"
	for name, write := range map[string]func(db *sql.DB) error{
		"a write": func(db *sql.DB) error {
			_, err := db.Exec(second)
			return err
		},
		"a staged soft transaction": func(db *sql.DB) error {
			ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
			if err != nil {
				return err
			}
			for _, s := range []string{addOne, second} {
				if _, err := db.ExecContext(ctx, s); err != nil {
					return err
				}
			}
			return soft.End(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db, exactlyOnce, func(c *bedsql.Config) { c.Lease = 2 * time.Second })
				r.receiptTable()
				r.account(0, 0)
				c, pool := r.openPanicking()
				pool.SetMaxOpenConns(1)
				c.panicAt("WHERE id = 2")
				wantPanic(t, func() { _ = write(pool) })
				if err := write(pool); err != nil {
					t.Fatal(err)
				}
				r.drain(r.job())
				if b := r.balance(2); b != 2 {
					t.Errorf("balance %d after two increments", b)
				}
				if a, b := r.balance(1), r.balance(2); a != 0 && a != b {
					t.Errorf("a unit was applied in part: balances %d and %d", a, b)
				}
			})
		})
	}
}

// stepwise changes a dialect to take a round trip for each statement.
func stepwise(d *dialect.Dialect) *dialect.Dialect {
	own := *d
	own.Atomic, own.CommitWith = nil, nil
	return &own
}

func TestStagedDriverPanicReachesTheCallerOfEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t), exactlyOnce, func(c *bedsql.Config) { c.Lease = 2 * time.Second })
	r.receiptTable()
	r.account(0, 0)
	c, pool := r.openPanicking()
	another := targetOf(t, r.db)
	another.DataSource, another.Dialect = "another", stepwise(another.Dialect)
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	r.stage(ctx, r.openTarget(another), addOne)
	r.stage(ctx, pool, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	c.panicAt("WHERE id = 2")
	wantPanic(t, func() { _ = soft.End(ctx) })
	r.drain(r.job())
	r.wantBalances(1, 1)
}
