package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
)

// sentOtherwise is a write whose value the driver sends otherwise when it was
// prepared than with the text.
var sentOtherwise = []struct {
	name         string
	db           func(testing.TB) testdb.DB
	param, value string
	table        string
	insert       string
	arg          any
	stored       string
	// byText means that pgx sends every text as prepared if the connection has an open prepared
	// statement of it.
	byText bool
}{
	{"interpolated bytes", testdb.MySQL, "interpolateParams", "true",
		"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40) CHARACTER SET latin1)", "INSERT INTO said VALUES (?, ?)", []byte("Grüße"), "HEX(what)", false},
	{"a slice in mode exec", testdb.Postgres, "default_query_exec_mode", "exec",
		"CREATE TABLE said (id INT PRIMARY KEY, what JSONB)", "INSERT INTO said VALUES ($1, $2)", []int64{}, "what::text", false},
	{"a slice in the simple protocol", testdb.Postgres, "default_query_exec_mode", "simple_protocol",
		"CREATE TABLE said (id INT PRIMARY KEY, what JSONB)", "INSERT INTO said VALUES ($1, $2)", []int64{}, "what::text", false},
	{"the text of a prepared write in mode exec", testdb.Postgres, "default_query_exec_mode", "exec",
		"CREATE TABLE said (id INT PRIMARY KEY, what JSONB)", "INSERT INTO said VALUES ($1, $2)", []int64{}, "what::text", true},
	{"the text of a prepared write in the simple protocol", testdb.Postgres, "default_query_exec_mode", "simple_protocol",
		"CREATE TABLE said (id INT PRIMARY KEY, what JSONB)", "INSERT INTO said VALUES ($1, $2)", []int64{}, "what::text", true},
}

func TestEveryAttemptRunsAPreparedWriteAsPrepared(t *testing.T) {
	t.Parallel()
	for _, c := range sentOtherwise {
		for _, g := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			t.Run(fmt.Sprint(c.name, ", guarantee ", g), func(t *testing.T) {
				t.Parallel()
				db := rig.WithParam(c.db(t), c.param, c.value)
				bus := listener.NewBus(rig.Quiet())
				var failed atomic.Value // func(): what to do at a failure
				failed.Store(func() {})
				defer bus.Subscribe(func(ev listener.Event) {
					if ev.Type == listener.ExecuteFailure {
						failed.Load().(func())()
					}
				}).Close()
				r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.Guarantee, cfg.Bus = g, bus })
				hasty := r.Open(rig.Impatient(db).DSN)
				r.Cfg.SyncMaxDeliveryTryTimes = 1000 // a listener may be late
				retrying := r.Open(rig.Impatient(db).DSN)
				r.Exec("CREATE TABLE account (id INT PRIMARY KEY)", "INSERT INTO account VALUES (1)", c.table)
				ctx := context.Background()
				write := func(ctx context.Context, pool *sql.DB, id int) error {
					conn, err := pool.Conn(ctx)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					st, err := conn.PrepareContext(ctx, c.insert)
					if err != nil {
						t.Fatal(err)
					}
					defer st.Close()
					if c.byText {
						_, err = conn.ExecContext(ctx, c.insert, id, c.arg)
					} else {
						_, err = st.ExecContext(ctx, id, c.arg)
					}
					return err
				}
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				must(write(ctx, r.Bare, 1))
				if _, err := r.Bare.Exec(c.insert, 100, c.arg); err != nil {
					t.Fatal(err)
				}
				if n := r.Count("SELECT count(DISTINCT " + c.stored + ") FROM said"); n != 2 {
					t.Fatal("sent as text it is stored the same: this test shows nothing")
				}
				r.Exec("DELETE FROM said WHERE id = 100")

				must(write(ctx, r.Wrapped, 2))
				for range 4 { // a text that is used often is sent otherwise
					r.Exec("DELETE FROM said WHERE id = 2")
					must(write(ctx, r.Wrapped, 2))
				}

				failed.Store(blockID(r, 3))
				must(write(ctx, retrying, 3)) // by a retry

				free := blockID(r, 4)
				failed.Store(func() {})
				rig.WantPending(t, write(ctx, hasty, 4))
				free()
				if report := r.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s, %+v", report, r.Logs())
				}

				sctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
				must(err)
				must(write(sctx, r.Wrapped, 5))
				must(soft.End(ctx))

				kctx, _ := bedsql.WithIdempotencyKey(ctx, "k")
				must(write(kctx, r.Wrapped, 6))

				if n := r.Count("SELECT count(*) FROM said a JOIN said b ON a.id = 1 AND " +
					"a.what = b.what"); n != 6 {
					rows, err := r.Bare.Query("SELECT id, " + c.stored + " FROM said ORDER BY id")
					must(err)
					defer rows.Close()
					for rows.Next() {
						var id int
						var what string
						must(rows.Scan(&id, &what))
						t.Errorf("%d: %s", id, what)
					}
				}
				r.WantNoLog()
			})
		}
	}
}

// go-sql-driver/mysql waits for ever when it runs such a statement by Exec for the
// second time: it takes the rows for the columns, which the server sends once.
func TestPreparedWriteReturningRowsCanRunByExec(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, g := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			t.Run(fmt.Sprint("guarantee ", g), func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db), func(cfg *bedsql.Config) { cfg.Guarantee = g })
				r.Account(0)
				ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
				defer cancel()
				// A row on its own, one that meets its key, and in a local transaction.
				st, err := r.Wrapped.PrepareContext(ctx, r.Q("INSERT INTO account VALUES (?, 7) RETURNING id, balance"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = st.Close() }()
				for _, id := range []int{2, 3, 1, 4, 1, 5} {
					if _, err := st.ExecContext(ctx, id); (id == 1) != (err != nil) || errors.Is(err, bedsql.ErrPending) {
						t.Fatalf("row %d: %v", id, err)
					}
				}
				tx, err := r.Wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, id := range []int{6, 7} {
					if _, err := tx.StmtContext(ctx, st).ExecContext(ctx, id); err != nil {
						t.Fatalf("row %d: %v", id, err)
					}
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				r.WantBalances(0, 7, 7, 7, 7, 7, 7)
				r.WantNoLog()
			})
		}
	})
}
