package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
)

func classIs(t *testing.T, what string, err error, want delivery.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	} else if got := Classify(err); got != want {
		t.Errorf("%s: %T %v is %v, want %v", what, err, err, got, want)
	}
}

func must(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.ExecContext(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func conn(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
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

func TestServerRefuses(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t).Open(t)
	must(t, db, schema)
	for _, text := range []string{
		"INSRT INTO t",
		"UPDATE nowhere SET x = 1",
		"UPDATE t SET nothing = 1",
		"INSERT INTO t (id, n) VALUES (1)",
		"INSERT INTO t (id) VALUES (2)",
		"INSERT INTO t (id, n) VALUES (2, -1)",
		"INSERT INTO t (id, n) VALUES (2, 99999999999)",
		"INSERT INTO t (id, n) VALUES (2, 'many')",
		"INSERT INTO t (id, n, s) VALUES (2, 1, 'long')",
		"INSERT INTO t (id, n, d) VALUES (2, 1, '2024-02-31')",
		"INSERT INTO t (id, n, g) VALUES (2, 1, 1)",
		"INSERT INTO child VALUES (2, 77)",
		"INSERT INTO booked VALUES ('[4,9)')",
		"DELETE FROM t WHERE id = 1",
		"DELETE FROM child",
		"UPDATE v SET c = 1",
		"UPDATE t SET n = nofunction(1)",
		"UPDATE t SET n = 1 / 0",
		"UPDATE t SET n = (SELECT id FROM generate_series(1, 3) AS id)",
		"INSERT INTO noschema.t VALUES (1)",
		"UPDATE t SET n = currval('t')",
	} {
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Refused)
	}
	for _, text := range []string{"INSERT INTO t (id, n) VALUES (1, 1)", "INSERT INTO t (id, n, u) VALUES (2, 1, 1)"} {
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Duplicate)
	}
}

func TestServerRefusesWithoutPrivilege(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	db := target.Open(t)
	role := target.Name + "_u"
	must(t, db, schema, "CREATE ROLE "+role+" LOGIN", "GRANT SELECT ON t TO "+role)
	t.Cleanup(func() { must(t, db, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	limited := config(t, target)
	limited.User, limited.Password = role, ""
	_, err := open(t, limited).Exec("INSERT INTO t (id, n) VALUES (7, 1)")
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code[:2] == "28" {
		t.Log("the server asks every user for a password")
	}
	classIs(t, "no INSERT privilege", err, delivery.Refused)
	absent := config(t, target)
	absent.Database = target.Name + "_absent"
	classIs(t, "unknown database", open(t, absent).Ping(), delivery.Refused)
	nobody := config(t, target)
	nobody.User = target.Name + "_nobody"
	classIs(t, "unknown role", open(t, nobody).Ping(), delivery.Refused)
}

func TestArgumentsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	must(t, target.Open(t), schema)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		cfg := config(t, target)
		cfg.DefaultQueryExecMode = mode
		db := open(t, cfg)
		for _, args := range [][]any{{1}, {1, 2, 3}, {1, "x"}, {1, struct{ A chan int }{}}, {1, int64(1 << 40)}} {
			_, err := db.Exec("INSERT INTO t (id, n) VALUES ($1, $2)", args...)
			classIs(t, fmt.Sprintf("%v, %d arguments %T", mode, len(args), args[len(args)-1]), err, delivery.Refused)
			rows, err := db.Query("INSERT INTO t (id, n) VALUES ($1, $2) RETURNING id", args...)
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
				rows.Close()
			}
			classIs(t, fmt.Sprintf("%v by Query, %d arguments %T", mode, len(args), args[len(args)-1]), err, delivery.Refused)
		}
		_, err := db.Exec("INSERT INTO t (id, n) VALUES (@id, @n)", pgx.StrictNamedArgs{"id": 1})
		classIs(t, "a named argument is missing", err, delivery.Refused)
	}
}

func TestServerMayDoBetterLater(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	db := target.Open(t)
	must(t, db, schema, "INSERT INTO t (id, n) VALUES (2, 2)")
	ctx := context.Background()
	holder, waiter := conn(t, db), conn(t, db)
	must(t, holder, "BEGIN", "UPDATE t SET n = 5 WHERE id = 1")

	must(t, waiter, "SET lock_timeout = 50")
	_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
	classIs(t, "lock_timeout", err, delivery.Retryable)
	must(t, waiter, "SET lock_timeout = 0", "SET statement_timeout = 50")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
	classIs(t, "statement_timeout", err, delivery.Retryable)
	must(t, waiter, "SET statement_timeout = 0")

	var pid int
	if err := waiter.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	update := func() {
		_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
		done <- err
	}
	go update()
	waitUntilWaiting(t, db, pid)
	must(t, db, fmt.Sprintf("SELECT pg_cancel_backend(%d)", pid))
	classIs(t, "pg_cancel_backend", <-done, delivery.Retryable)

	must(t, waiter, "BEGIN READ ONLY")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "read-only transaction", err, delivery.Retryable)
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "failed transaction", err, delivery.Retryable)
	must(t, waiter, "ROLLBACK")

	must(t, waiter, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM t")
	must(t, holder, "UPDATE t SET n = 7 WHERE id = 2", "COMMIT")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "serialization failure", err, delivery.Retryable)
	must(t, waiter, "ROLLBACK")

	must(t, holder, "BEGIN", "UPDATE t SET n = 1 WHERE id = 1")
	must(t, waiter, "SET deadlock_timeout = 10", "BEGIN", "UPDATE t SET n = 1 WHERE id = 2")
	go update()
	waitUntilWaiting(t, db, pid)
	_, err = holder.ExecContext(ctx, "UPDATE t SET n = 1 WHERE id = 2")
	if other := <-done; err == nil {
		err = other
	}
	classIs(t, "deadlock", err, delivery.Retryable)
	_, _ = holder.ExecContext(ctx, "ROLLBACK")
	_, _ = waiter.ExecContext(ctx, "ROLLBACK")

	must(t, holder, "BEGIN", "UPDATE t SET n = 5 WHERE id = 1")
	go update()
	waitUntilWaiting(t, db, pid)
	must(t, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	classIs(t, "pg_terminate_backend", <-done, delivery.Unknown)
}

func waitUntilWaiting(t *testing.T, db *sql.DB, pid int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted", pid).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
	t.Fatal("the session never waited")
}

func TestChangedPlanIsRetryable(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t).Open(t)
	must(t, db, "CREATE TABLE t (id int)")
	c := conn(t, db)
	const text = "INSERT INTO t VALUES ($1) RETURNING *"
	if _, err := c.ExecContext(context.Background(), text, 1); err != nil {
		t.Fatal(err)
	}
	must(t, db, "ALTER TABLE t ADD more int")
	_, err := c.ExecContext(context.Background(), text, 2)
	classIs(t, "cached plan must not change result type", err, delivery.Retryable)
	if _, err := c.ExecContext(context.Background(), text, 3); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestNoAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t).Open(t)
	c := conn(t, db)
	var pid int
	if err := c.QueryRowContext(context.Background(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := c.ExecContext(ctx, "SELECT pg_sleep(60)")
		done <- err
	}()
	for asleep := false; !asleep; {
		if err := db.QueryRow("SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid).Scan(&asleep); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	classIs(t, "the context ended", <-done, delivery.Unknown)
	must(t, db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, &net.OpError{Op: "write", Err: errors.New("broken pipe")}, errors.New("whatever"),
		&pgconn.PgError{Code: "08006"}, &pgconn.PgError{Code: "40003"}, &pgconn.PgError{Code: "57P02"}, &pgconn.PgError{Code: "08P01", SeverityUnlocalized: "FATAL"}} {
		classIs(t, "no answer", err, delivery.Unknown)
	}
}

// A connection that breaks under a simple query is met by pgx as one that was
// closed before it, and by database/sql as driver.ErrBadConn.
func TestABrokenConnectionIsUnknownThoughPgxCallsItSafeToRetry(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	direct := target.Open(t)
	must(t, direct, "CREATE TABLE t (id int)")
	p := testproxy.New(t, target.Addr())
	run := func(what string, f func(driver.Conn) error) {
		t.Helper()
		c := conn(t, target.Via(p.Addr()).Open(t))
		must(t, direct, "TRUNCATE t")
		_ = c.Raw(func(dc any) error {
			classIs(t, what, f(dc.(driver.Conn)), delivery.Unknown)
			return driver.ErrBadConn
		})
		var n int
		if err := direct.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil || n != 1 {
			t.Errorf("%s: %d rows, %v; the server was to carry it out", what, n, err)
		}
	}
	const text = "INSERT INTO t VALUES (1)"
	run("Exec", func(dc driver.Conn) error {
		p.CutAfter(testproxy.Text(text))
		_, err := dc.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
		return err
	})
	run("Query", func(dc driver.Conn) error {
		p.CutAfter(testproxy.PostgresExecute)
		_, err := dc.(driver.QueryerContext).QueryContext(context.Background(), text+" RETURNING id", nil)
		return err
	})
	run("Commit", func(dc driver.Conn) error {
		tx, err := dc.(driver.ConnBeginTx).BeginTx(context.Background(), driver.TxOptions{})
		if err != nil {
			return err
		}
		if _, err := dc.(driver.ExecerContext).ExecContext(context.Background(), text, nil); err != nil {
			return err
		}
		p.CutAfter(testproxy.Text("commit"))
		return tx.Commit()
	})
}

func TestContextThatHadEndedBeforeIsUnreachable(t *testing.T) {
	t.Parallel()
	c := conn(t, testdb.Postgres(t).Open(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Raw(func(dc any) error {
		// Exec and Query say driver.ErrBadConn, which is no promise.
		out := attempt.One(ctx, Dialect(), dc.(driver.Conn), delivery.Call{SQL: "SELECT 1"}, false, false)
		if out.Class != delivery.Unreachable {
			t.Errorf("Exec: %v, want unreachable", out.Class)
		}
		_, err := dc.(driver.ConnPrepareContext).PrepareContext(ctx, "SELECT 1")
		classIs(t, "Prepare", err, delivery.Unreachable)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestFailedDialIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	for _, dsn := range []string{"postgres://u@" + addr + "/x", "host=/nowhere user=u", "postgres://u@nohost.invalid/x"} {
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			t.Fatal(err)
		}
		classIs(t, dsn, db.Ping(), delivery.Unreachable)
		db.Close()
	}
	target := testdb.Postgres(t)
	mixed := config(t, target)
	mixed.Fallbacks = []*pgconn.FallbackConfig{{Host: mixed.Host, Port: mixed.Port, TLSConfig: mixed.TLSConfig}}
	mixed.Host, mixed.TLSConfig = "/nowhere", nil
	mixed.User = target.Name + "_nobody"
	classIs(t, "one host is down, the other refuses", open(t, mixed).Ping(), delivery.Retryable)
	classIs(t, "too many connections", &pgconn.PgError{Code: "53300", SeverityUnlocalized: "FATAL"}, delivery.Retryable)
	classIs(t, "starting up", &pgconn.PgError{Code: "57P03", SeverityUnlocalized: "FATAL"}, delivery.Retryable)
}

func TestUnlistedServerErrorIsRetryable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]delivery.Class{
		"XX000": delivery.Retryable, "ZZ999": delivery.Retryable, "": delivery.Retryable, "58030": delivery.Retryable,
		"26000": delivery.Retryable, "P0002": delivery.Refused, "54000": delivery.Refused, "HV000": delivery.Unknown,
	} {
		classIs(t, code, fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}), want)
	}
}
