package acceptance

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
func (r *rig) only() string {
	r.t.Helper()
	var rows int
	var id sql.NullString
	if err := r.bare.QueryRow("SELECT COUNT(*), MAX(id) FROM fresh").Scan(&rows, &id); err != nil || rows != 1 {
		r.t.Fatalf("%d rows, %v, want 1", rows, err)
	}
	return id.String
}

func TestValuerIsAskedOnceForEachWrite(t *testing.T) {
	t.Parallel()
	background := context.Background()
	for how, write := range map[string]func(r *rig, v any) error{
		"Exec": func(r *rig, v any) error {
			_, err := r.wrapped.Exec(r.q(insertFresh), v)
			return err
		},
		"a prepared statement": func(r *rig, v any) error {
			st, err := r.wrapped.Prepare(r.q(insertFresh))
			if err != nil {
				return err
			}
			defer func() { _ = st.Close() }()
			_, err = st.Exec(v)
			return err
		},
		"RETURNING": func(r *rig, v any) error {
			var id string
			return r.wrapped.QueryRow(r.q(insertFresh)+" RETURNING id", v).Scan(&id)
		},
		"a local transaction": func(r *rig, v any) error {
			tx, err := r.wrapped.Begin()
			if err != nil {
				return err
			}
			if _, err := tx.Exec(r.q(insertFresh), v); err != nil {
				return err
			}
			return tx.Commit()
		},
		"an idempotency key": func(r *rig, v any) error {
			ctx, _ := keyed("k")
			_, err := r.wrapped.ExecContext(ctx, r.q(insertFresh), v)
			return err
		},
		"a staged soft transaction": func(r *rig, v any) error {
			ctx, st, err := bedsql.Begin(background, bedsql.Staged())
			if err != nil {
				return err
			}
			if _, err := r.wrapped.ExecContext(ctx, r.q(insertFresh), v); err != nil {
				return err
			}
			return st.End(background)
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db)
				r.exec("CREATE TABLE fresh (id VARCHAR(40) PRIMARY KEY)")
				v := new(fresh)
				if err := write(r, v); err != nil {
					t.Fatal(err)
				}
				if id, asked := r.only(), v.asked.Load(); id != "fresh-1" || asked != 1 {
					t.Errorf("%s was written, and the Valuer asked %d times", id, asked)
				}
			})
		})
	}
}

func TestRetrySendsTheValueThatIsLogged(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.exec("CREATE TABLE fresh (id VARCHAR(40) PRIMARY KEY)")
		r.must(r.wrapped, r.q("DELETE FROM fresh WHERE id = ?"), "none")
		struck := p.CutAfter(testproxy.Text("fresh-"))
		v := new(fresh)
		if _, err := r.wrapped.Exec(r.q(insertFresh), v); err != nil {
			t.Fatal(err)
		}
		testproxy.Await(t, struck)
		if id, asked := r.only(), v.asked.Load(); id != "fresh-1" || asked != 1 {
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
			r, p := newRigBehindProxy(t, db, noSyncRetry)
			r.exec("CREATE TYPE address AS (street text, no int)", "CREATE TABLE house (a address, list address[], doc jsonb)")
			cfg, err := pgx.ParseConfig(r.db.DSN + "&default_query_exec_mode=" + mode)
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
			for server, pool := range map[string]*sql.DB{"up": r.openTarget(postgres.TargetOf(cfg, "house", registers)), "down": r.openTarget(postgres.TargetOf(cfg, "house", registers))} {
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
			r.wantNoLog()
			if n := r.count("SELECT COUNT(*) FROM house"); n != 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
}
