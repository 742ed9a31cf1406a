package truth

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// fresh is a new value each time it is asked, as an id that a Valuer generates.
type fresh struct{ asked atomic.Int64 }

func (f *fresh) Value() (driver.Value, error) {
	return fmt.Sprintf("fresh-%d", f.asked.Add(1)), nil
}

const insertFresh = "INSERT INTO fresh VALUES (?)"

// only is the one value in the table.
func only(r *rig.Rig) string {
	r.T.Helper()
	var rows int
	var id sql.NullString
	if err := r.Bare.QueryRow("SELECT COUNT(*), MAX(id) FROM fresh").Scan(&rows, &id); err != nil || rows != 1 {
		r.T.Fatalf("%d rows, %v, want 1", rows, err)
	}
	return id.String
}

func TestValuerIsAskedOnceForEachWrite(t *testing.T) {
	t.Parallel()
	background := context.Background()
	for how, write := range map[string]func(r *rig.Rig, v any) error{
		"Exec": func(r *rig.Rig, v any) error {
			_, err := r.Wrapped.Exec(r.Q(insertFresh), v)
			return err
		},
		"a prepared statement": func(r *rig.Rig, v any) error {
			st, err := r.Wrapped.Prepare(r.Q(insertFresh))
			if err != nil {
				return err
			}
			defer func() { _ = st.Close() }()
			_, err = st.Exec(v)
			return err
		},
		"RETURNING": func(r *rig.Rig, v any) error {
			var id string
			return r.Wrapped.QueryRow(r.Q(insertFresh)+" RETURNING id", v).Scan(&id)
		},
		"a local transaction": func(r *rig.Rig, v any) error {
			tx, err := r.Wrapped.Begin()
			if err != nil {
				return err
			}
			if _, err := tx.Exec(r.Q(insertFresh), v); err != nil {
				return err
			}
			return tx.Commit()
		},
		"an idempotency key": func(r *rig.Rig, v any) error {
			ctx, _ := rig.Keyed("k")
			_, err := r.Wrapped.ExecContext(ctx, r.Q(insertFresh), v)
			return err
		},
		"a staged soft transaction": func(r *rig.Rig, v any) error {
			ctx, st, err := bedsql.Begin(background, bedsql.Staged())
			if err != nil {
				return err
			}
			if _, err := r.Wrapped.ExecContext(ctx, r.Q(insertFresh), v); err != nil {
				return err
			}
			return st.End(background)
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db)
				r.Exec("CREATE TABLE fresh (id VARCHAR(40) PRIMARY KEY)")
				if how == "RETURNING" && !r.Returns(t) {
					return
				}
				v := new(fresh)
				if err := write(r, v); err != nil {
					t.Fatal(err)
				}
				if id, asked := only(r), v.asked.Load(); id != "fresh-1" || asked != 1 {
					t.Errorf("%s was written, and the Valuer asked %d times", id, asked)
				}
			})
		})
	}
}

func TestRetrySendsTheValueThatIsLogged(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Exec("CREATE TABLE fresh (id VARCHAR(40) PRIMARY KEY)")
		r.Must(r.Wrapped, r.Q("DELETE FROM fresh WHERE id = ?"), "none")
		struck := p.CutAfter(testproxy.Text("fresh-"))
		v := new(fresh)
		if _, err := r.Wrapped.Exec(r.Q(insertFresh), v); err != nil {
			t.Fatal(err)
		}
		testproxy.Await(t, struck)
		if id, asked := only(r), v.asked.Load(); id != "fresh-1" || asked != 1 {
			t.Errorf("%s was written, and the Valuer asked %d times", id, asked)
		}
	})
}

// A struct is JSON to one column and a row to another, once a connection has registered the
// row's type: bed cannot know which before it reaches the database.
func TestValueOfTwoFormsIsRefusedBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	type address struct {
		Street string
		No     int32
	}
	values := map[string]any{
		"a struct": address{"x", 7}, "a pointer to one": &address{"x", 7}, "structs": []address{{"x", 7}}, "a map": map[string]string{"a": "b"},
		"any": []any{1, address{"x", 7}}, "a named argument": pgx.NamedArgs{"v": address{"x", 7}},
	}
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
			r.Exec("CREATE TYPE address AS (street text, no int)", "CREATE TABLE house (a address, list address[], doc jsonb)")
			cfg, err := pgx.ParseConfig(r.DB.DSN + "&default_query_exec_mode=" + mode)
			if err != nil {
				t.Fatal(err)
			}
			registers := stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
				address, err := c.LoadType(ctx, "address")
				if err == nil {
					c.TypeMap().RegisterType(address)
				}
				return err
			})
			for server, pool := range map[string]*sql.DB{"up": r.OpenTarget(postgres.TargetOf(cfg, "house", registers)), "down": r.OpenTarget(postgres.TargetOf(cfg, "house", registers))} {
				if server == "down" {
					p.Refuse()
				}
				for what, v := range values {
					marker := "$1"
					if what == "a named argument" {
						marker = "@v"
					}
					for _, column := range []string{"a", "list", "doc"} {
						_, err := pool.Exec("INSERT INTO house ("+column+") VALUES ("+marker+")", v)
						var param *txlog.ParamError
						if bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || !errors.As(err, &param) {
							t.Errorf("%s, the server is %s: %v, want it refused before anything runs", what, server, err)
						}
					}
				}
				p.Accept()
			}
			r.WantNoLog()
			if n := r.Count("SELECT COUNT(*) FROM house"); n != 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
}
