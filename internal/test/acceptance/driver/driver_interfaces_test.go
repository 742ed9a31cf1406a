package driver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// column holds the facts of a column in sql.Rows.
type column struct {
	name, typ           string
	scan                reflect.Type
	length, prec, scale int64
	hasLength, hasDec   bool
	nullable, hasNull   bool
}

func columns(t testing.TB, rows *sql.Rows) []column {
	t.Helper()
	types, err := rows.ColumnTypes()
	if err != nil {
		t.Fatal(err)
	}
	var out []column
	for _, ct := range types {
		c := column{name: ct.Name(), typ: ct.DatabaseTypeName(), scan: ct.ScanType()}
		c.length, c.hasLength = ct.Length()
		c.prec, c.scale, c.hasDec = ct.DecimalSize()
		c.nullable, c.hasNull = ct.Nullable()
		out = append(out, c)
	}
	return out
}

// kinds makes a table with a column of each kind of value and one row.
func kinds(r *rig.Rig) {
	r.T.Helper()
	blob := "BLOB"
	if r.DB.Driver == testdb.DriverPostgres {
		blob = "BYTEA"
	}
	r.Exec("CREATE TABLE kinds (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, price DECIMAL(10,3), data "+blob+", happened TIMESTAMP NULL, ratio DOUBLE PRECISION)",
		"INSERT INTO kinds VALUES (1, 'a', 1.5, NULL, '2024-05-06 07:08:09', 0.25)")
}

func TestRowsOfAQueryAreTheDriversOwn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		kinds(r)
		for _, query := range []string{"SELECT * FROM kinds", "SELECT id, name FROM kinds WHERE id = ?", "SELECT * FROM kinds WHERE id = 0"} {
			var args []any
			if strings.Contains(query, "?") {
				args = []any{1}
			}
			bare, err := r.Bare.Query(r.Q(query), args...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bare.Close() }()
			wrapped, err := r.Wrapped.Query(r.Q(query), args...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = wrapped.Close() }()
			if want, got := columns(t, bare), columns(t, wrapped); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: columns are %+v, want %+v", query, got, want)
			}
			if want, got := rig.Content(t, bare), rig.Content(t, wrapped); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: rows are %+v, want %+v", query, got, want)
			}
		}
	})
}

func TestSeveralResultSetsComeThrough(t *testing.T) {
	t.Parallel()
	db := rig.WithParam(testdb.MySQL(t), "multiStatements", "true")
	r := rig.New(t, db)
	rows, err := r.Wrapped.Query("SELECT 1; SELECT 2")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	sets := 1
	_ = rig.Content(t, rows)
	for rows.NextResultSet() {
		sets++
		_ = rig.Content(t, rows)
	}
	if sets != 2 {
		t.Errorf("%d result sets, want 2", sets)
	}
}

func TestOptionsOfATransactionReachTheServer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx := context.Background()
		for _, opts := range []*sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelSerializable}, {Isolation: sql.LevelLinearizable}} {
			want := inTransaction(ctx, r.Bare, opts)
			err := inTransaction(ctx, r.Wrapped, opts)
			if (err == nil) != (want == nil) || err != nil && err.Error() != want.Error() {
				t.Errorf("a write with the options %+v: %v, with the bare driver: %v", *opts, err, want)
			}
		}
		if db.Driver == testdb.DriverPostgres {
			tx, err := r.Wrapped.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
			if err != nil {
				t.Fatal(err)
			}
			var level string
			err = tx.QueryRow("SHOW transaction_isolation").Scan(&level)
			_ = tx.Rollback()
			if err != nil || level != "serializable" {
				t.Errorf("the isolation level is %q, %v", level, err)
			}
		}
		r.WantNoLog()
	})
}

func inTransaction(ctx context.Context, pool *sql.DB, opts *sql.TxOptions) error {
	tx, err := pool.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec("UPDATE account SET balance = 1"); err != nil {
		return err
	}
	return tx.Commit()
}

func TestRawReachesTheDriversConnection(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx := context.Background()
		var want reflect.Type
		bare, err := r.Bare.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = bare.Raw(func(dc any) error {
			want = reflect.TypeOf(dc)
			return nil
		})
		_ = bare.Close()
		conn := r.Conn()
		err = conn.Raw(func(dc any) error {
			inner, err := dc.(interface {
				Raw(context.Context) (driver.Conn, error)
			}).Raw(ctx)
			if err != nil {
				return err
			}
			if got := reflect.TypeOf(inner); got != want {
				t.Errorf("Raw gives a %v, want the driver's own %v", got, want)
			}
			if c, ok := inner.(*stdlib.Conn); ok {
				// pgx can do this and database/sql cannot.
				_, err = c.Conn().Exec(ctx, "UPDATE account SET balance = 7")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Must(conn, "UPDATE account SET balance = balance + ?", 1)
		if n := r.Counters.PassedThrough.Load(); n != 1 {
			t.Errorf("%d writes counted as passed through after Raw, want 1", n)
		}
		if r.Counters.Delivered.Load() != 0 {
			t.Error("a write after Raw was logged")
		}
	})
}

func TestPreparedResultsAreTheDrivers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		id := testdb.By[string]{MySQL: "BIGINT AUTO_INCREMENT PRIMARY KEY", Postgres: "BIGSERIAL PRIMARY KEY",
			SQLite: "INTEGER PRIMARY KEY AUTOINCREMENT"}.For(db.Driver)
		r.Exec("CREATE TABLE made (id " + id + ", n INT)")
		st, err := r.Wrapped.Prepare(r.Q("INSERT INTO made (n) VALUES (?)"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		for want := int64(1); want <= 3; want++ {
			res, err := st.Exec(5)
			if err != nil {
				t.Fatal(err)
			}
			got, err := res.LastInsertId()
			if db.Driver == testdb.DriverPostgres {
				if err == nil {
					t.Error("PostgreSQL's driver has no LastInsertId, the wrapper invented one")
				}
			} else if got != want || err != nil {
				t.Errorf("LastInsertId = %d, %v; want %d", got, err, want)
			}
		}
		if n := r.Count("SELECT count(*) FROM made"); n != 3 {
			t.Errorf("%d rows, want 3", n)
		}
		r.WantNoLog()
	})
}

func TestSkipRunsStraightThrough(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		ctx := bedsql.Unlogged(context.Background())
		if _, err := r.Wrapped.ExecContext(ctx, r.Q("UPDATE account SET balance = ? WHERE id = ?"), 5, 1); err != nil {
			t.Fatal(err)
		}
		_, want := r.Bare.Exec("INSERT INTO account VALUES (1, 1)")
		if _, err := r.Wrapped.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)"); !reflect.DeepEqual(err, want) {
			t.Errorf("%v, want the driver's own %v", err, want)
		}
		if adds != 0 || r.Counters.Unlogged.Load() != 2 {
			t.Errorf("%d entries, %d writes counted as skipped; want 0 and 2", adds, r.Counters.Unlogged.Load())
		}
		r.WantBalances(5)
	})
}
