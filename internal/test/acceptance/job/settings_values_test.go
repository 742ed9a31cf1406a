package job

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// valueSetting is a DSN under which a write does something else than without.
type valueSetting struct {
	db     func(testing.TB) testdb.DB
	params [][2]string
	setup  []string
	// write writes the row whose id is its first argument; arg is the second.
	write string
	arg   any
	// seen shows what was written for an id.
	seen string
}

const (
	said     = "INSERT INTO said VALUES (?, ?)"
	saidWhat = "SELECT COALESCE(CAST(what AS CHAR(40)), 'null') FROM said WHERE id = ?"
	saidText = "SELECT COALESCE(what::text, 'null') FROM said WHERE id = ?"
	saidHex  = "SELECT COALESCE(HEX(what), 'null') FROM said WHERE id = ?"
)

var noon = time.Date(2024, 7, 1, 12, 30, 15, 123456000, time.UTC)

func param(list ...string) (params [][2]string) {
	for i := 0; i < len(list); i += 2 {
		params = append(params, [2]string{list[i], list[i+1]})
	}
	return params
}

var valueSettings = map[string]valueSetting{
	"MySQL interpolateParams": {testdb.MySQL, param("interpolateParams", "true"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40) CHARACTER SET latin1)"}, said, []byte("Grüße"), saidHex},
	"MySQL charset": {testdb.MySQL, param("charset", "latin1"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40) CHARACTER SET utf8mb4)"}, said, "Grüße", saidHex},
	"MySQL a list of charsets, and a collation": {testdb.MySQL, param("charset=latin1,utf8mb4&collation", "latin1_bin"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40) CHARACTER SET utf8mb4)"}, said, "Grüße", saidHex},
	"MySQL collation": {testdb.MySQL, param("collation", "utf8mb4_bin"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what INT)"}, "INSERT INTO said VALUES (?, ? = 'GRUSS')", "gruss", saidWhat},
	"MySQL check_constraint_checks": {testdb.MySQL, param("check_constraint_checks", "0"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what INT CHECK (what > 5))"}, said, 3, saidWhat},
	"MySQL old_mode": {testdb.MySQL, param("old_mode", "'ZERO_DATE_TIME_CAST'"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what DATETIME)"}, "INSERT INTO said VALUES (?, TIMESTAMP(CAST(? AS TIME)))", "10:11:12", saidWhat},
	"MySQL sql_mode": {testdb.MySQL, param("sql_mode", "'PIPES_AS_CONCAT,ANSI_QUOTES'"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40))"}, "INSERT INTO said VALUES (?, ? || 'b')", "a", saidWhat},
	"MySQL a variable of the application's": {testdb.MySQL, param("@tenant", "'seven; 50%'"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what VARCHAR(40))", "CREATE TRIGGER tells BEFORE INSERT ON said FOR EACH ROW SET NEW.what = @tenant"}, said, "?", saidWhat},
	"MySQL time zones": {testdb.MySQL, param("loc", "Asia/Tokyo", "time_zone", "'-03:00'", "timeTruncate", "1s"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what TIMESTAMP(6) NULL)"}, said, noon, saidWhat},
	"PostgreSQL exec mode": {testdb.Postgres, param("default_query_exec_mode", "exec"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what JSONB)"}, said, []int64{}, saidText},
	"PostgreSQL options": {testdb.Postgres, param("options", `-c app.tenant=5\ 0`),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, ignored TEXT, what TEXT DEFAULT current_setting('app.tenant', true))"}, "INSERT INTO said (id, ignored) VALUES (?, ?)", "", saidText},
	"PostgreSQL a parameter of the application's": {testdb.Postgres, param("app.tenant", "a=b;c%3B"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, ignored TEXT, what TEXT DEFAULT current_setting('app.tenant', true))"}, "INSERT INTO said (id, ignored) VALUES (?, ?)", "", saidText},
	"PostgreSQL bytea_output": {testdb.Postgres, param("bytea_output", "escape"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what TEXT)"}, "INSERT INTO said VALUES (?, CAST(CAST(? AS bytea) AS TEXT))", []byte("a\xff"), saidText},
	"PostgreSQL search_path": {testdb.Postgres, param("search_path", "other, public"),
		[]string{"CREATE TABLE said (id INT PRIMARY KEY, what TEXT)", "CREATE FUNCTION where_am_i() RETURNS TEXT LANGUAGE sql AS 'SELECT ''public'''", "CREATE SCHEMA other",
			"CREATE FUNCTION other.where_am_i() RETURNS TEXT LANGUAGE sql AS 'SELECT ''other'''"}, "INSERT INTO said VALUES (?, where_am_i() || ?)", "", saidText},
	"SQLite foreign_keys": {testdb.SQLite, param("_pragma", "foreign_keys(1)"),
		[]string{"CREATE TABLE parent (id INTEGER PRIMARY KEY)", "CREATE TABLE said (parent INTEGER REFERENCES parent ON DELETE CASCADE)", "INSERT INTO parent VALUES (1), (2), (3)", "INSERT INTO said VALUES (1), (2), (3)"},
		"DELETE FROM parent WHERE id = ? AND ? <> ''", "x", "SELECT count(*) FROM said WHERE parent = ?"},
	"SQLite foreign_keys by its own name": {testdb.SQLite, param("_fk", "true"),
		[]string{"CREATE TABLE parent (id INTEGER PRIMARY KEY)", "CREATE TABLE said (parent INTEGER REFERENCES parent ON DELETE CASCADE)", "INSERT INTO parent VALUES (1), (2), (3)", "INSERT INTO said VALUES (1), (2), (3)"},
		"DELETE FROM parent WHERE id = ? AND ? <> ''", "x", "SELECT count(*) FROM said WHERE parent = ?"},
	"SQLite case_sensitive_like": {testdb.SQLite, param("_pragma", "case_sensitive_like(1)"),
		[]string{"CREATE TABLE said (id INTEGER PRIMARY KEY, what INTEGER)"}, "INSERT INTO said VALUES (?, 'A' LIKE ?)", "a", saidWhat},
	"SQLite times": {testdb.SQLite, param("_timezone", "Asia/Tokyo", "_time_format", "datetime"),
		[]string{"CREATE TABLE said (id INTEGER PRIMARY KEY, what TEXT)"}, said, noon, saidWhat},
}

func TestJobWithAnotherDSNStoresTheSameValues(t *testing.T) {
	t.Parallel()
	for name, c := range valueSettings {
		for _, g := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			t.Run(fmt.Sprint(name, ", guarantee ", g), func(t *testing.T) {
				t.Parallel()
				plain := c.db(t)
				r := rig.New(t, plain, rig.NoSyncRetry, func(cfg *bedsql.Config) { cfg.Guarantee = g })
				with, hasty := plain, rig.Impatient(plain)
				for _, p := range c.params {
					with, hasty = rig.WithParam(with, p[0], p[1]), rig.WithParam(hasty, p[0], p[1])
				}
				r.Exec(c.setup...)
				writer, same := r.Open(hasty.DSN), with.Open(t)
				write := func(pool *sql.DB, id int) error {
					_, err := pool.ExecContext(context.Background(), r.Q(c.write), id, c.arg)
					return err
				}
				seen := func(id int) (what string) {
					if err := same.QueryRow(r.Q(c.seen), id).Scan(&what); err != nil {
						what = err.Error()
					}
					return what
				}
				if err := write(same, 1); err != nil {
					t.Fatal(err)
				}
				if err := write(r.Bare, 3); err == nil && seen(1) == seen(3) {
					t.Fatalf("with and without %s it is %s: this test shows nothing", c.params, seen(1))
				}
				if g == bedsql.ExactlyOnce { // the table of receipts is there before anything is locked
					if err := write(writer, 4); err != nil {
						t.Fatal(err)
					}
					r.WantNoLog()
				}
				var free func()
				if plain.Driver == testdb.DriverSQLite {
					free = r.BlockRow(0)
				} else {
					free = blockID(r, 2)
				}
				err := write(writer, 2)
				free()
				rig.WantPending(t, err)
				if report := r.DeliverTo(t, r.WantOneLog().DataSource, plain.DSN); report.Delivered != 1 {
					t.Fatalf("the job: %s, %+v", report, r.Logs())
				}
				if seen(1) != seen(2) {
					t.Errorf("the application writes %s, the job %s", seen(1), seen(2))
				}
			})
		}
	}
}

// blockID keeps everybody from inserting a row into said until free is called.
func blockID(r *rig.Rig, id int) (free func()) {
	r.T.Helper()
	tx, err := r.Bare.Begin()
	if err != nil {
		r.T.Fatal(err)
	}
	if _, err := tx.Exec(fmt.Sprintf("INSERT INTO said (id) VALUES (%d)", id)); err != nil {
		r.T.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}
