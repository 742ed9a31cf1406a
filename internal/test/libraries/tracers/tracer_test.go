package tracers

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/http"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/XSAM/otelsql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// hiding is a tracer that shows nothing of the connection under it.
type hiding struct{ driver.Connector }

func (h hiding) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := h.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &hidden{under: c.(wide)}, nil
}

type wide interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
}

type hidden struct{ under wide }

func (h *hidden) Prepare(q string) (driver.Stmt, error) { return h.under.Prepare(q) }

func (h *hidden) Close() error { return h.under.Close() }

func (h *hidden) Begin() (driver.Tx, error) { panic("BeginTx is there") }

func (h *hidden) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return h.under.BeginTx(ctx, o)
}

func (h *hidden) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	return h.under.PrepareContext(ctx, q)
}

func (h *hidden) ExecContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Result, error) {
	return h.under.ExecContext(ctx, q, a)
}

func (h *hidden) QueryContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Rows, error) {
	return h.under.QueryContext(ctx, q, a)
}

func (h *hidden) CheckNamedValue(v *driver.NamedValue) error { return h.under.CheckNamedValue(v) }

// tracers open a rig's target with a tracer around bed.
var tracers = map[string]func(t *testing.T, r *rig.Rig) *sql.DB{
	"otelsql, by the driver's name": func(t *testing.T, r *rig.Rig) *sql.DB {
		db, err := otelsql.Open(r.Register(), r.DB.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return db
	},
	"otelsql, registered": func(t *testing.T, r *rig.Rig) *sql.DB {
		name, err := otelsql.Register(r.Register(), otelsql.WithSQLCommenter(true))
		if err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open(name, r.DB.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return db
	},
	"otelsql, around the connector": func(t *testing.T, r *rig.Rig) *sql.DB { return otelsql.OpenDB(connectorOf(t, r)) },
	"one that hides bed":            func(t *testing.T, r *rig.Rig) *sql.DB { return sql.OpenDB(hiding{connectorOf(t, r)}) },
}

func connectorOf(t *testing.T, r *rig.Rig) driver.Connector {
	c, err := bedsql.NewConnector(rig.TargetOf(t, r.DB), r.Cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTracerAroundBedKeepsKeysAndMessages(t *testing.T) {
	t.Parallel()
	for name, open := range tracers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db, rig.ExactlyOnce)
				r.Account(0)
				pool := open(t, r)
				pool.SetMaxOpenConns(testdb.MaxOpenConns)
				t.Cleanup(func() { _ = pool.Close() })

				pay := func(w http.ResponseWriter, r *http.Request) {
					if rig.Pays(w, r) {
						w.WriteHeader(http.StatusCreated)
					}
				}
				s := rig.NewService(t, r, pay, func(c *bedhttp.Config) { c.DB = pool })
				s.Wants(s.Asks("k", "{}"), http.StatusCreated, false)
				s.Wants(s.Asks("k", "{}"), http.StatusCreated, true)
				s.WantsRuns(1, 1)

				consume, err := bedmessage.Once(pool, "shipping", func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
					_, err := tx.ExecContext(ctx, rig.AddOne)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := consume(message.NewMessage("m-1", nil)); err != nil {
						t.Error(err)
					}
				}
				if b := r.Balance(1); b != 2 {
					t.Errorf("the balance is %d, want 2", b)
				}
				r.WantNoLog()
			})
		})
	}
}

func TestHTTPDatabaseThatLosesContextsIsRefused(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t), rig.ExactlyOnce)
	pool := sql.OpenDB(bare{hiding{connectorOf(t, r)}})
	t.Cleanup(func() { _ = pool.Close() })
	if _, err := bedhttp.New(bedhttp.Config{Service: "orders", DB: pool, Client: func(*http.Request) string { return "x" }}); err == nil {
		t.Error("New takes a database on which no key can reach bed")
	}
}

// bare drops every context, as a wrapper does that is older than they are.
type bare struct{ hiding }

func (b bare) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := b.hiding.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return old{c.(*hidden)}, nil
}

type old struct{ under *hidden }

func (o old) Prepare(q string) (driver.Stmt, error) { return o.under.Prepare(q) }

func (o old) Close() error { return o.under.Close() }

func (o old) Begin() (driver.Tx, error) {
	return o.under.BeginTx(context.Background(), driver.TxOptions{})
}

func TestTracerAroundBedKeepsGroupsOfRequests(t *testing.T) {
	t.Parallel()
	for name, open := range tracers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
				home := &rig.Rig{T: t, DB: w.HomeDB, Cfg: w.Cfg}
				pool := open(t, home)
				t.Cleanup(func() { _ = pool.Close() })
				s := rig.NewService(t, home, func(_ http.ResponseWriter, r *http.Request) {
					ctx, _, err := bedsql.Begin(r.Context(), bedsql.WithTx(bedhttp.Tx(r.Context())))
					if err != nil {
						t.Error(err)
					}
					home.Must(bedhttp.Tx(ctx), "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
					w.Stage(ctx, w.Wrapped, rig.Increment, 1, 1)
				}, func(c *bedhttp.Config) { c.DB = pool })
				for _, replayed := range []bool{false, true} {
					s.Wants(s.Asks("k", "{}"), 200, replayed)
					if a, b := w.AtHome(), w.Balance(1); a != 99 || b != 101 {
						t.Errorf("home has %d and the stock %d, want 99 and 101", a, b)
					}
				}
				w.WantEmpty()
			})
		})
	}
}
