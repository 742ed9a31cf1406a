package errmask

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/bedsql/bed/bedsql/mysql"
	_ "github.com/bedsql/bed/bedsql/postgres"
	_ "github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/testdb"
)

// word matches texts that a parameter could equal by chance.
var word = regexp.MustCompile(`[\pL\pN_.]+|\pN+`)

// both fails the test if a value is shown. It also fails if the result changes with a parameter
// that equals a word of the message, or a part of a word's punctuation.
func both(t *testing.T, text string, secrets ...string) {
	t.Helper()
	shown := Mask(text, secrets...)
	for _, s := range secrets {
		if strings.Contains(shown, s) {
			t.Errorf("%s is shown: %s", s, shown)
		}
	}
	if made.MatchString(text) { // by somebody's own trigger
		return
	}
	words := word.FindAllString(shown, -1)
	for _, w := range words {
		words = append(words, strings.Split(w, ".")...)
	}
	slices.Sort(words)
	for _, w := range slices.Compact(words) {
		if strings.Trim(w, ".") == "" || slices.Contains(secrets, w) {
			continue
		}
		if got := Mask(text, append([]string{w}, secrets...)...); got != shown {
			t.Errorf("the parameter %s makes of\n%s\n%s", w, shown, got)
		}
	}
}

var schemas = testdb.By[[]string]{
	MySQL: []string{
		"CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), s VARCHAR(9), e ENUM('a','b'), d DATE, j JSON, u INT UNIQUE, g INT AS (n + 1), x BIGINT UNSIGNED) ENGINE=InnoDB",
		"CREATE TABLE child (id INT PRIMARY KEY, t INT NOT NULL, CONSTRAINT fk FOREIGN KEY (t) REFERENCES t (id)) ENGINE=InnoDB",
		"CREATE VIEW v AS SELECT COUNT(*) AS c FROM t",
		"CREATE PROCEDURE own(who TEXT, n INT) SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = who, MYSQL_ERRNO = 1644",
		"INSERT INTO t (id, n, u) VALUES (1, 1, 1)", "INSERT INTO child VALUES (1, 1)",
	},
	Postgres: []string{
		"CREATE TYPE mood AS ENUM ('happy')", "CREATE DOMAIN positive AS INT CHECK (VALUE > 0)",
		"CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), s VARCHAR(9), e mood, d DATE, j JSONB, u INT UNIQUE, g INT GENERATED ALWAYS AS (n + 1) STORED, x NUMERIC(5,2), p positive, a INT[], r INT4RANGE, ts TIMESTAMPTZ, b BIT(3), i INET, id2 UUID)",
		"CREATE TABLE child (id INT PRIMARY KEY, t INT NOT NULL CONSTRAINT fk REFERENCES t (id))",
		"CREATE VIEW v AS SELECT count(*) AS c FROM t", "CREATE SEQUENCE s MAXVALUE 10",
		"CREATE FUNCTION own(who TEXT, n INT) RETURNS INT LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the user \"%\" has %', who, n; END $$",
		"INSERT INTO t (id, n, u) VALUES (1, 1, 1)", "INSERT INTO child VALUES (1, 1)",
	},
	SQLite: []string{
		"CREATE TABLE t (id INTEGER PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), s TEXT, u INT UNIQUE)",
		"CREATE TABLE child (id INTEGER PRIMARY KEY, t INT NOT NULL REFERENCES t (id))",
		"CREATE TABLE strict (id INT) STRICT", "CREATE VIEW v AS SELECT count(*) AS c FROM t",
		"CREATE TRIGGER own BEFORE DELETE ON child BEGIN SELECT RAISE(ABORT, 'the user \"bob\" has 17'); END",
		"INSERT INTO t (id, n, u) VALUES (1, 1, 1)", "INSERT INTO child VALUES (1, 1)", "PRAGMA foreign_keys = ON",
	},
}

// Messages of real servers and their drivers are in testdata/errors/said-*.txt: the masked form,
// the statement, and its parameters.
func TestRealErrorsShowNoValueAndAllElse(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		conn, err := db.Open(t).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, text := range schemas.For(db.Driver) {
			if _, err := conn.ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		said := func(t *testing.T, in ...string) string {
			args, secrets := make([]any, len(in)-1), []string{}
			for i, text := range in[1:] {
				args[i] = text
				if n, err := strconv.ParseInt(text, 10, 64); err == nil {
					args[i] = n
				}
				if len(text) > 1 {
					secrets = append(secrets, text)
				}
			}
			_, err := conn.ExecContext(t.Context(), in[0], args...)
			if err == nil {
				return "no error"
			}
			both(t, err.Error(), secrets...)
			return strings.ReplaceAll(Mask(err.Error(), secrets...), db.Name, "DB")
		}
		file, version := "errors/said-"+db.Driver+".txt", "SQLite"
		if db.Driver != testdb.DriverSQLite {
			if err := conn.QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version); err != nil {
				t.Fatal(err)
			}
		}
		// Other versions have other words, and these must not be masked either.
		if slices.ContainsFunc([]string{"SQLite", "10.11.", "PostgreSQL 15."}, func(recorded string) bool { return strings.HasPrefix(version, recorded) }) {
			cases.Check(t, file, said)
			return
		}
		for _, c := range cases.Read(t, file) {
			said(t, c.In...)
		}
	})
}

func TestNetworkErrorsAreShownWhole(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	_ = l.Close()
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	var said []string
	for _, address := range []string{closed, deaf.Addr().String(), "nowhere.invalid:3306"} {
		for driver, dsn := range map[string]string{"mysql": "app:pw@tcp(" + address + ")/d?timeout=1s&readTimeout=1s", "pgx": "postgres://app:pw@" + address + "/d?connect_timeout=1"} {
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err = db.PingContext(ctx); err == nil {
				t.Fatal("connected")
			}
			cancel()
			_ = db.Close()
			said = append(said, err.Error())
		}
	}
	said = append(said, "invalid connection", "driver: bad connection", "context deadline exceeded", "context canceled", "unexpected EOF", "broken pipe", "sql: database is closed",
		"read tcp 10.0.0.1:40312->10.0.0.2:3306: read: connection reset by peer", "write tcp [::1]:40312->[::1]:5432: write: broken pipe", "read tcp 10.0.0.1:40312->10.0.0.2:3306: i/o timeout",
		"dial unix /run/mysqld/mysqld.sock: connect: no such file or directory", "lookup db.internal on 10.0.0.53:53: no such host", "tls: failed to verify certificate: x509: certificate signed by unknown authority",
		"conn closed", "timeout: context deadline exceeded", "commands out of sync. Did you run multiple statements at once?", "database is locked (5) (SQLITE_BUSY)", "database is locked (5)", "attempt to write a readonly database (8)", "disk I/O error (10)", "database or disk is full (13)")
	for _, text := range said {
		both(t, text)
		if got := Mask(text, "1", "tcp", "127"); strings.Contains(got, "?") && !strings.Contains(text, "?") {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

// A conversion fails before sending, and quotes its value.
func TestConversionsShowNoValue(t *testing.T) {
	t.Parallel()
	var n int64
	var at time.Time
	for _, v := range []any{"s3cr3t", []byte("s3cr3t")} {
		for _, to := range []any{&n, &at, new(bool), new(float64), &struct{}{}} {
			db := testdb.SQLite(t).Open(t)
			err := db.QueryRow("SELECT ?", v).Scan(to)
			if err == nil {
				t.Fatalf("%T became %T", v, to)
			}
			if got := Mask(err.Error()); strings.Contains(got, "s3cr3t") {
				t.Errorf("%T: %s", to, got)
			}
			both(t, err.Error(), "s3cr3t")
		}
	}
	_, err := strconv.Atoi("s3cr3t")
	_, derr := time.Parse(time.DateOnly, "s3cr3t")
	for _, text := range []string{err.Error(), derr.Error(), fmt.Sprintf("sql: converting argument $1 type: %v", err), "failed to encode args[0]: unable to encode struct { A string }{A:\"s3cr3t\"} into text format for money (OID 790): cannot find encode plan",
		`ERROR: invalid byte sequence for encoding "UTF8": 0xe4 0x73 (SQLSTATE 22021)`} {
		if got := Mask(text); strings.Contains(got, "s3cr3t") || strings.Contains(got, "0x73") {
			t.Errorf("%s", got)
		}
	}
}
