package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

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
	classIs(t, "no INSERT privilege", err, dialect.Refused)
	absent := config(t, target)
	absent.Database = target.Name + "_absent"
	classIs(t, "unknown database", open(t, absent).Ping(), dialect.Refused)
	nobody := config(t, target)
	nobody.User = target.Name + "_nobody"
	classIs(t, "unknown role", open(t, nobody).Ping(), dialect.Refused)
}

func TestAFailedSerializationOrADeadlockIsRetryable(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	db := target.Open(t)
	must(t, db, schema, "INSERT INTO t (id, n) VALUES (2, 2)")
	ctx := context.Background()
	holder, waiter := conn(t, db), conn(t, db)
	must(t, holder, "BEGIN", "UPDATE t SET n = 5 WHERE id = 1")
	pid := sessions.SessionID(t, waiter)
	done := make(chan error, 1)
	update := func() {
		_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
		done <- err
	}
	must(t, waiter, "BEGIN READ ONLY")
	_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "read-only transaction", err, dialect.Retryable)
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "failed transaction", err, dialect.Retryable)
	must(t, waiter, "ROLLBACK")

	must(t, waiter, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM t")
	must(t, holder, "UPDATE t SET n = 7 WHERE id = 2", "COMMIT")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "serialization failure", err, dialect.Contention)
	must(t, waiter, "ROLLBACK")

	must(t, holder, "BEGIN", "UPDATE t SET n = 1 WHERE id = 1")
	must(t, waiter, "SET deadlock_timeout = 10", "BEGIN", "UPDATE t SET n = 1 WHERE id = 2")
	go update()
	sessions.AwaitLock(t, db, pid)
	_, err = holder.ExecContext(ctx, "UPDATE t SET n = 1 WHERE id = 2")
	if other := <-done; err == nil {
		err = other
	}
	classIs(t, "deadlock", err, dialect.Contention)
	_, _ = holder.ExecContext(ctx, "ROLLBACK")
	_, _ = waiter.ExecContext(ctx, "ROLLBACK")
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
	classIs(t, "cached plan must not change result type", err, dialect.Retryable)
	if _, err := c.ExecContext(context.Background(), text, 3); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// When a connection breaks under a simple query, pgx reports it as closed before the query, and
// database/sql as driver.ErrBadConn.
func TestBrokenConnectionIsUnknownDespitePgxsAdvice(t *testing.T) {
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
			classIs(t, what, f(dc.(driver.Conn)), dialect.Unknown)
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
		// Exec and Query return driver.ErrBadConn. It promises nothing here.
		out := attempt.One(ctx, postgresDialect, dc.(driver.Conn), dialect.Call{SQL: "SELECT 1"}, false, false)
		if out.Class != dialect.Unreachable {
			t.Errorf("Exec: %v, want unreachable", out.Class)
		}
		_, err := dc.(driver.ConnPrepareContext).PrepareContext(ctx, "SELECT 1")
		classIs(t, "Prepare", err, dialect.Unreachable)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPartlyRefusedMultiHostDialIsRetryable(t *testing.T) {
	t.Parallel()
	target := testdb.Postgres(t)
	mixed := config(t, target)
	mixed.Fallbacks = []*pgconn.FallbackConfig{{Host: mixed.Host, Port: mixed.Port, TLSConfig: mixed.TLSConfig}}
	mixed.Host, mixed.TLSConfig = "/nowhere", nil
	mixed.User = target.Name + "_nobody"
	classIs(t, "one host is down, the other refuses", open(t, mixed).Ping(), dialect.Retryable)
}

// A pooler that ends a session for a lost server does not know how far the server got.
func TestPoolerErrorThatEndsSessionLeavesOutcomeOpen(t *testing.T) {
	for _, e := range []pgconn.PgError{
		{Code: "08P01", Severity: "FATAL", Message: "server conn crashed?"}, // PgBouncer 1.18
		{Code: "08P01", Severity: "FATAL", SeverityUnlocalized: "FATAL"},
		{Code: "58000", Severity: "FATAL", SeverityUnlocalized: "FATAL"},
		{Code: "3D000", Severity: "FATAL"},
	} {
		if class := classify(fmt.Errorf("wrapped: %w", &e)); class != dialect.Unknown {
			t.Errorf("%+v is %v", e, class)
		}
	}
	for code, want := range map[string]dialect.Class{"08P01": dialect.Refused, "53300": dialect.Retryable} {
		if class := classify(&pgconn.PgError{Code: code, Severity: "ERROR"}); class != want {
			t.Errorf("%s that leaves the session open is %v, want %v", code, class, want)
		}
	}
}
