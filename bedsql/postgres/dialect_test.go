package postgres

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/dialecttest"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/stdlib"
)

var (
	must = dialecttest.Must
	conn = dialecttest.Conn
)

func classIs(t *testing.T, what string, err error, want dialect.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	} else if got := classify(err); got != want {
		t.Errorf("%s: %T %v is %v, want %v", what, err, err, got, want)
	}
}

func withParam(dsn, param string) string {
	key, value, _ := strings.Cut(param, "=")
	switch {
	case !strings.Contains(dsn, "://"):
		return dsn + " " + key + "='" + value + "'"
	case strings.Contains(dsn, "?"):
		return dsn + "&" + param
	}
	return dsn + "?" + param
}

// config is the test database's, for changes.
func config(t *testing.T, db testdb.DB) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t *testing.T, cfg *pgx.ConnConfig) *sql.DB {
	t.Helper()
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(testdb.MaxOpenConns)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

const schema = `CREATE TABLE t (
		id int PRIMARY KEY, n int NOT NULL CHECK (n >= 0), s varchar(3), u int UNIQUE, d date,
		g int GENERATED ALWAYS AS (n + 1) STORED);
	CREATE TABLE child (id int PRIMARY KEY, t int NOT NULL REFERENCES t (id));
	CREATE TABLE booked (during int4range, EXCLUDE USING gist (during WITH &&));
	INSERT INTO t (id, n, u) VALUES (1, 1, 1); INSERT INTO child VALUES (1, 1); INSERT INTO booked VALUES ('[1,5)');
	CREATE VIEW v AS SELECT count(*) AS c FROM t;
	CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END';
	CREATE TRIGGER no BEFORE DELETE ON child FOR EACH ROW EXECUTE FUNCTION no()`

func TestDialect(t *testing.T) {
	const insert = "INSERT INTO t (id, n) VALUES ($1, $2) RETURNING id"
	const mode = "synchronous_commit=off&default_query_exec_mode="
	dialecttest.Exercise(t, dialecttest.Kit{
		Name: name, DB: testdb.Postgres, WithParam: withParam, Dialect: postgresDialect, Target: Target, NewConnector: NewConnector, Neutral: neutral,
		Code: func(code string) dialect.Class {
			code, severity, _ := strings.Cut(code, " ")
			if len(code) == 2 { // a class of SQLSTATEs
				code += "ZZZ"
			}
			return classify(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code, SeverityUnlocalized: severity, Routine: "routine"}))
		},
		Own: func(t testing.TB) map[string][]string {
			files, _ := filepath.Glob("/usr/share/postgresql/*/errcodes.txt") // this machine's servers
			files = append(files, cases.Path(t, "errors/postgres-server.txt"))
			lists := map[string][]string{}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				lists[file] = regexp.MustCompile(`(?m)^[0-9A-Z]{5}\b`).FindAllString(string(text), -1)
			}
			return lists
		},
		BadConn: dialect.Unknown,
		Schema:  []string{schema},
		Misfits: []dialecttest.Call{
			dialecttest.Misfit(insert, 1), dialecttest.Misfit(insert, 1, 2, 3), dialecttest.Misfit(insert, 1, "x"),
			dialecttest.Misfit(insert, 1, struct{ A chan int }{}), dialecttest.Misfit(insert, 1, int64(1<<40)),
			dialecttest.Misfit("INSERT INTO t (id, n) VALUES (@id, @n)", pgx.StrictNamedArgs{"id": 1}),
		},
		Modes:       []string{mode + "cache_statement", mode + "cache_describe", mode + "describe_exec", mode + "exec", mode + "simple_protocol"},
		Unreachable: []string{"postgres://u@127.0.0.1:1/x", "host=/nowhere user=u", "postgres://u@nohost.invalid/x"},
		BadDSN:      "no equals sign",
		Server:      sessions,
		Values: dialecttest.Values{
			Modes:   []string{mode + "cache_statement", mode + "exec", mode + "simple_protocol", mode + "cache_describe", mode + "describe_exec"},
			Setup:   []string{"CREATE TYPE mood AS ENUM ('happy', 'sad')"},
			Columns: columns, Of: acceptedValues, Marker: "$1", Markers: "$1, $2", Shown: "v::text", Returning: true, Least: 200,
			Skip: func(column string, v any) bool { // pgx makes zeros and ones of any text that a Valuer gives
				_, bits := v.(pgtype.Bits)
				_, numeric := v.(pgtype.Numeric) // the server reads an xid8 from any text that begins with digits
				return column == "varbit" && !bits || column == "xid8" && numeric
			},
			Unsendable: func(param string, given, kept any) bool {
				_, name, _ := strings.Cut(param, mode)
				c := call("", kept)
				_, err := sendable(execModes[name], []driver.NamedValue{{Value: given}}, c)
				return err != nil
			},
			Unsteady: func(v any) bool { // pgx plans them by the first of their type that a connection sends
				if m, ok := v.(pgtype.MultirangeGetter); ok && m.Len() == 0 { // in an array column
					return true
				}
				t := reflect.TypeOf(v)
				return t != nil && t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Slice
			},
		},
	})
}

var sessions = &dialecttest.Server{
	ID: "SELECT pg_backend_pid()", Sleep: "SELECT pg_sleep(60)",
	Asleep:      "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = %d AND wait_event = 'PgSleep'",
	LockTimeout: "SET lock_timeout = 50", StatementTimeout: "SET statement_timeout = 1000",
	NoTimeout: "SET lock_timeout = 0; SET statement_timeout = 0",
	Cancel:    "SELECT pg_cancel_backend(%d)", Kill: "SELECT pg_terminate_backend(%d)", ReadOnly: "BEGIN READ ONLY",
	Waits: func(t *testing.T, db *sql.DB, id int64) (waits bool) {
		if err := db.QueryRow("SELECT count(*) > 0 FROM pg_locks WHERE pid = $1 AND NOT granted", id).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	},
}
