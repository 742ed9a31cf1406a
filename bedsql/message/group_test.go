package message_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// group is a log, a database and a broker for one soft transaction.
type group struct {
	*testing.T
	storage txlog.Storage
	target  delivery.Target
	stock   *sql.DB // by bed
	bare    *sql.DB
	b       *memory
	p       *bedmessage.Publisher
	down    atomic.Bool // the database
}

// Connect implements driver.Connector.
func (g *group) Connect(ctx context.Context) (driver.Conn, error) {
	if g.down.Load() {
		return nil, errors.New("dial tcp: connection refused")
	}
	return g.target.Connector.Connect(ctx)
}

func (g *group) Driver() driver.Driver { return g.target.Connector.Driver() }

func newGroup(t *testing.T, storage txlog.Storage, db testdb.DB) *group {
	t.Helper()
	g := &group{T: t, storage: storage, b: &memory{}, bare: db.Open(t)}
	_, err := g.bare.Exec("CREATE TABLE stock (n INT NOT NULL PRIMARY KEY)")
	must(t, err)
	targetOf := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(db.Driver)
	g.target, err = targetOf(db.DSN)
	must(t, err)
	g.target.DataSource = "stock"
	cfg := bedsql.Config{Storage: storage, NoSyncRetry: true}
	connector, err := bedsql.NewConnector(g.at(), cfg)
	must(t, err)
	g.stock = sql.OpenDB(connector)
	t.Cleanup(func() { _ = g.stock.Close() })
	g.p = newPublisher(t, g.b, cfg)
	return g
}

// at is the target, which may be down.
func (g *group) at() delivery.Target {
	target := g.target
	target.Connector = g
	return target
}

// stage records a row and messages.
func (g *group) stage(row string, payloads ...string) (end func() error) {
	g.Helper()
	ctx, soft, err := bedsql.Begin(g.Context(), bedsql.Staged())
	must(g, err)
	g.record(ctx, row, payloads...)
	return func() error { return soft.End(g.Context()) }
}

func (g *group) record(ctx context.Context, row string, payloads ...string) {
	g.Helper()
	for i, payload := range payloads {
		must(g, g.p.Publish(ctx, "orders", text(payload)))
		if i == 0 {
			_, err := g.stock.ExecContext(ctx, row)
			must(g, err)
		}
	}
}

// round is one round of a job with both targets.
func (g *group) round() asyncjob.Report {
	g.Helper()
	events, err := bedmessage.Target(g.b, "events", bedmessage.Confirms())
	must(g, err)
	job, err := asyncjob.New(g.storage, asyncjob.Targets{"events": events, "stock": g.at()}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay})
	must(g, err)
	defer job.Close()
	report, err := job.RunOnce(g.Context())
	must(g, err)
	return report
}

// wants checks the published messages and the entries in the log.
func (g *group) wants(when string, left int, payloads ...string) []*entry.Unit {
	g.Helper()
	all := waiting(g, g.storage)
	slices.Sort(payloads) // a job keeps the order as far as it can
	if got := slices.Sorted(slices.Values(g.b.payloads())); !slices.Equal(got, payloads) || len(all) != left {
		g.Errorf("%s: published %q, wanted %q; %d entries, wanted %d", when, got, payloads, len(all), left)
		for _, u := range all {
			g.Logf("left: %s %s parked %v: %s", u.DataSource, u.Statements[0].SQL, u.Parked, u.LastError)
		}
	}
	return all
}

func (g *group) wantRows(want int) {
	g.Helper()
	var n int
	must(g, g.bare.QueryRow("SELECT COUNT(*) FROM stock").Scan(&n))
	if n != want {
		g.Errorf("%d rows, wanted %d", n, want)
	}
}

func eachGroup(t *testing.T, f func(t *testing.T, g *group)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		f(t, newGroup(t, openLog(t, testdb.New(t, db.Driver)), db))
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		f(t, newGroup(t, txlog.NewMemory(), testdb.SQLite(t)))
	})
}

func TestMessagesOfAGroupWaitForItsRows(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *group) {
		g.down.Store(true)
		if err := g.stage("INSERT INTO stock VALUES (1)", "one", "two")(); bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
			t.Errorf("End: %v", err)
		}
		g.wants("the database is down", 3)
		for range 3 {
			g.round()
		}
		for _, u := range g.wants("the database is down still", 3) {
			if u.DataSource == "events" && (u.Tries != 0 || !strings.Contains(u.LastError, "of its group is delivered")) {
				t.Errorf("the message has %d tries, and says %q", u.Tries, u.LastError)
			}
		}
		must(t, g.p.Publish(t.Context(), "orders", text("another"))) // nobody waits behind them
		g.down.Store(false)
		g.round()
		g.wants("the database is up", 0, "another", "one", "two")
		must(t, g.stage("INSERT INTO stock VALUES (2)", "three", "four")())
		g.wants("all is well", 0, "another", "one", "two", "three", "four")
		g.wantRows(2)
	})
}

func TestMessagesOfARefusedGroupAreNotSent(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *group) {
		var refused *bedsql.RefusedError
		err := g.stage("INSERT INTO nowhere VALUES (1)", "one", "two")()
		if bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || !errors.As(err, &refused) || !refused.Removed {
			t.Errorf("End: %v", err)
		}
		g.wants("all of it is refused", 0)
		g.round()
		g.wants("all of it is refused, and the job has run", 0)
	})
}

// other is a second database of the group, which accepts everything.
func (g *group) other() *sql.DB {
	g.Helper()
	target, err := sqlite.Target(testdb.SQLite(g).DSN)
	must(g, err)
	target.DataSource = "ledger"
	connector, err := sqlite.NewConnector(target, bedsql.Config{Storage: g.storage, NoSyncRetry: true})
	must(g, err)
	db := sql.OpenDB(connector)
	g.Cleanup(func() { _ = db.Close() })
	_, err = db.Exec("CREATE TABLE entry (n INT)")
	must(g, err)
	return db
}

func TestMessagesOfAParkedPartWaitForTheOperator(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"retry", "discard", "discard, and retry the message"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			eachGroup(t, func(t *testing.T, g *group) {
				ledger := g.other()
				ctx, soft, err := bedsql.Begin(bedsql.WithOrderKey(t.Context(), "customer 1"), bedsql.Staged())
				must(t, err)
				_, err = ledger.ExecContext(ctx, "INSERT INTO entry VALUES (1)")
				must(t, err)
				g.record(ctx, "INSERT INTO late VALUES (1)", "one")
				err = soft.End(t.Context())
				if bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
					t.Errorf("End: %v", err)
				}
				g.round()
				parked := ""
				for _, u := range g.wants("a part is refused", 2) {
					if u.Parked != (u.DataSource == "stock") {
						t.Errorf("%s is parked: %v", u.DataSource, u.Parked)
					}
					if u.Parked {
						parked = u.ID
					}
				}
				if decision == "retry" {
					_, err := g.bare.Exec("CREATE TABLE late (n INT)")
					must(t, err)
					must(t, g.storage.Retry(t.Context(), parked))
					g.round()
					g.wants("the part is delivered", 0, "one")
					return
				}
				must(t, g.storage.Discard(t.Context(), parked))
				g.round()
				left := g.wants("the part is discarded", 1)
				if len(left) != 1 || !left[0].Parked || !strings.Contains(left[0].LastError, parked) {
					t.Fatalf("the message: %+v", left)
				}
				g.round()
				if decision == "discard" {
					g.wants("nobody has decided", 1)
					return
				}
				must(t, g.storage.Retry(t.Context(), left[0].ID))
				g.round()
				g.wants("the message is retried", 0, "one")
			})
		})
	}
}

// The order of messages and writes in WithTx does not matter, nor who delivers.
func TestMessagesOfWithWaitForItsRows(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		eachServer(t, func(t *testing.T, c *consuming) {
			g := newGroup(t, c.storage, testdb.SQLite(t))
			g.down.Store(true)
			tx, err := c.pool.BeginTx(t.Context(), nil)
			must(t, err)
			ctx, soft, err := bedsql.Begin(t.Context(), bedsql.WithTx(tx))
			must(t, err)
			g.record(ctx, "INSERT INTO stock VALUES (1)", "one", "two")
			must(t, tx.Commit())
			if ends {
				if err := soft.End(t.Context()); bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
					t.Errorf("End: %v", err)
				}
			}
			g.round()
			for _, u := range g.wants("the database is down", 3) {
				if u.DataSource == "events" && (u.InDoubt || len(u.After) != 1) {
					t.Errorf("the message waits for %v, in doubt: %v", u.After, u.InDoubt)
				}
			}
			g.down.Store(false)
			g.round()
			g.wants("the database is up", 0, "one", "two")
		})
	}
}
