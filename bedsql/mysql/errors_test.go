package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
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

// withParam adds a parameter to a DSN that may have some.
func withParam(dsn, param string) string {
	if _, _, ok := cutParams(dsn); ok {
		return dsn + "&" + param
	}
	return dsn + "?" + param
}

const schema = `CREATE TABLE t (
	id INT PRIMARY KEY, n INT NOT NULL, s VARCHAR(3), u INT UNIQUE, e ENUM('a','b'), d DATE,
	g INT AS (n + 1) VIRTUAL, CONSTRAINT positive CHECK (n >= 0)) ENGINE=InnoDB`

func TestServerRefuses(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema, "CREATE TABLE child (id INT PRIMARY KEY, t INT NOT NULL, FOREIGN KEY (t) REFERENCES t (id)) ENGINE=InnoDB",
		"INSERT INTO t (id, n, u) VALUES (1, 1, 1)", "INSERT INTO child VALUES (1, 1)",
		"CREATE VIEW v AS SELECT count(*) AS c FROM t",
		"CREATE TRIGGER no BEFORE DELETE ON child FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
	for _, text := range []string{
		"INSRT INTO t",
		"UPDATE nowhere SET x = 1",
		"UPDATE t SET nothing = 1",
		"INSERT INTO t (id, n) VALUES (1)",
		"INSERT INTO t (id) VALUES (2)",
		"INSERT INTO t (id, n) VALUES (2, NULL)",
		"INSERT INTO t (id, n) VALUES (2, -1)",
		"INSERT INTO t (id, n) VALUES (2, 99999999999)",
		"INSERT INTO t (id, n) VALUES (2, 'many')",
		"INSERT INTO t (id, n, s) VALUES (2, 1, 'long')",
		"INSERT INTO t (id, n, e) VALUES (2, 1, 'c')",
		"INSERT INTO t (id, n, d) VALUES (2, 1, '2024-02-31')",
		"INSERT INTO t (id, n, g) VALUES (2, 1, 1)",
		"INSERT INTO child VALUES (2, 77)",
		"DELETE FROM t WHERE id = 1",
		"DELETE FROM child",
		"UPDATE v SET c = 1",
		"UPDATE t SET n = nofunction(1)",
		"INSERT INTO mysql.nowhere VALUES (1)",
		"INSERT INTO nodatabase.t VALUES (1)",
		"UPDATE t SET s = CONVERT(s USING nocharset)",
	} {
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Refused)
	}
	for _, text := range []string{"INSERT INTO t (id, n) VALUES (1, 1)", "INSERT INTO t (id, n, u) VALUES (2, 1, 1)", "UPDATE t SET u = 1, id = 1"} {
		if strings.HasPrefix(text, "UPDATE") {
			must(t, db, "INSERT INTO t (id, n, u) VALUES (3, 1, 3)")
		}
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Duplicate)
	}
}

func TestServerRefusesWithoutPrivilege(t *testing.T) {
	t.Parallel()
	target := testdb.MySQL(t)
	db := target.Open(t)
	must(t, db, schema)
	user := target.Name + "_u"
	if len(user) > 60 {
		user = user[len(user)-60:]
	}
	must(t, db, "CREATE USER '"+user+"'@'%' IDENTIFIED BY 'right'", "GRANT SELECT ON "+target.Name+".t TO '"+user+"'@'%'")
	t.Cleanup(func() { must(t, db, "DROP USER '"+user+"'@'%'") })

	login := func(password, database string) *sql.DB {
		cfg, err := mysql.ParseDSN(target.DSN)
		if err != nil {
			t.Fatal(err)
		}
		cfg.User, cfg.Passwd, cfg.DBName = user, password, database
		limited, err := sql.Open("mysql", cfg.FormatDSN())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = limited.Close() })
		return limited
	}
	_, err := login("right", target.Name).Exec("INSERT INTO t (id, n) VALUES (1, 1)")
	classIs(t, "no INSERT privilege", err, delivery.Refused)
	classIs(t, "wrong password", login("wrong", target.Name).Ping(), delivery.Refused)
	classIs(t, "no access to the database", login("right", "mysql").Ping(), delivery.Refused)
	cfg, _ := mysql.ParseDSN(target.DSN)
	cfg.DBName = target.Name + "_absent"
	absent, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer absent.Close()
	classIs(t, "unknown database", absent.Ping(), delivery.Refused)
}

func TestArgumentsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	target := testdb.MySQL(t)
	db := target.Open(t)
	must(t, db, schema)
	stmt, err := db.Prepare("INSERT INTO t (id, n) VALUES (?, ?)")
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	_, err = stmt.Exec(1)
	classIs(t, "one argument of two, as database/sql says it", err, delivery.Refused)
	_, err = db.Exec("INSERT INTO t (id, n) VALUES (?, ?)", 1, struct{}{})
	classIs(t, "a struct", err, delivery.Refused)
	_, err = db.Exec("INSERT INTO t (id, n) VALUES (?, ?)", 1, sql.Named("n", 1))
	classIs(t, "a named parameter", err, delivery.Refused)
	_, err = db.Exec("INSERT INTO t (id, n, d) VALUES (1, 1, ?)", time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC))
	classIs(t, "a year of five digits", err, delivery.Refused)

	small, err := sql.Open("mysql", withParam(target.DSN, "maxAllowedPacket=1024"))
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	_, err = small.Exec("INSERT INTO t (id, n, s) VALUES (1, 1, '" + strings.Repeat("x", 2000) + "')")
	classIs(t, "a packet that the driver does not send", err, delivery.Refused)

	// Below the driver's checks: a statement that is given too few values.
	c := conn(t, db)
	if err := c.Raw(func(dc any) error {
		s, err := dc.(driver.Conn).Prepare("INSERT INTO t (id, n) VALUES (?, ?)")
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), []driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
		classIs(t, "one argument of two", err, delivery.Refused)
		_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), []driver.NamedValue{{Ordinal: 1, Value: int64(1)}, {Ordinal: 2, Value: int32(1)}})
		classIs(t, "a type that is none of the driver's", err, delivery.Refused)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPacketTooLargeForTheServerIsRefused(t *testing.T) {
	t.Parallel()
	target := testdb.MySQL(t)
	db := target.Open(t)
	must(t, db, "CREATE TABLE blobs (b LONGBLOB)")
	var limit int
	if err := db.QueryRow("SELECT @@max_allowed_packet").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	large, err := sql.Open("mysql", withParam(target.DSN, fmt.Sprintf("maxAllowedPacket=%d", limit+1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	_, err = large.Exec("INSERT INTO blobs VALUES ('" + strings.Repeat("x", limit+1000) + "')")
	// The server answers with error 1153 and hangs up, or hangs up while the
	// packet is still being written: then nobody can tell.
	if c := Classify(err); c != delivery.Refused && c != delivery.Unknown {
		t.Errorf("%v is %v", err, c)
	}
	classIs(t, "the answer", &mysql.MySQLError{Number: 1153, SQLState: [5]byte{'0', '8', 'S', '0', '1'}}, delivery.Refused)
}

func TestServerMayDoBetterLater(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema, "INSERT INTO t (id, n) VALUES (1, 1), (2, 2)")
	ctx := context.Background()
	holder, waiter := conn(t, db), conn(t, db)
	must(t, holder, "BEGIN", "UPDATE t SET n = 5 WHERE id = 1")

	must(t, waiter, "SET innodb_lock_wait_timeout = 1")
	_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
	classIs(t, "lock wait timeout", err, delivery.Retryable)

	must(t, waiter, "SET innodb_lock_wait_timeout = 50, max_statement_time = 0.1")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
	classIs(t, "max_statement_time", err, delivery.Retryable)
	must(t, waiter, "SET max_statement_time = 0")

	var id int64
	if err := waiter.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
		done <- err
	}()
	waitUntilWaiting(t, db, id)
	must(t, db, fmt.Sprintf("KILL QUERY %d", id))
	classIs(t, "KILL QUERY", <-done, delivery.Retryable)

	must(t, waiter, "START TRANSACTION READ ONLY")
	_, err = waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 2")
	classIs(t, "read-only transaction", err, delivery.Retryable)
	must(t, waiter, "ROLLBACK")

	go func() {
		_, err := waiter.ExecContext(ctx, "UPDATE t SET n = 6 WHERE id = 1")
		done <- err
	}()
	waitUntilWaiting(t, db, id)
	must(t, db, fmt.Sprintf("KILL %d", id))
	classIs(t, "KILL", <-done, delivery.Unknown)
}

// waitUntilWaiting returns when the session waits for a row lock. It does not
// ask information_schema.innodb_trx, which stays as it is for as long as
// anybody looks at it more often than every 100 ms.
func waitUntilWaiting(t *testing.T, db *sql.DB, id int64) {
	t.Helper()
	thread := fmt.Sprintf("thread id %d,", id)
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		// Not information_schema.innodb_trx, which is a copy that is not renewed
		// while several look at it all the time.
		var kind, name, status string
		if err := db.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
			t.Fatal(err)
		}
		for trx := range strings.SplitSeq(status, "---TRANSACTION ") {
			if strings.Contains(trx, thread) && strings.Contains(trx, "LOCK WAIT") {
				return
			}
		}
	}
	t.Fatal("the session never waited")
}

func TestNoAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	ctx, cancel := context.WithCancel(context.Background())
	c := conn(t, db)
	var id int64
	if err := c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.ExecContext(ctx, "DO SLEEP(60)")
		done <- err
	}()
	for asleep := false; !asleep; {
		if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND state = 'User sleep'", id).Scan(&asleep); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	classIs(t, "the context ended", <-done, delivery.Unknown)
	_, _ = db.Exec(fmt.Sprintf("KILL %d", id))
	for _, err := range []error{mysql.ErrInvalidConn, mysql.ErrMalformPkt, mysql.ErrPktSync, io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded,
		&net.OpError{Op: "write", Err: errors.New("broken pipe")}, &net.OpError{Op: "read", Err: errors.New("reset")}, errors.New("whatever")} {
		classIs(t, "no answer", err, delivery.Unknown)
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
	for _, dsn := range []string{"root@tcp(" + addr + ")/x", "root@tcp(nohost.invalid:1)/x", "root@unix(/nowhere/mysql.sock)/x"} {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		classIs(t, dsn, db.Ping(), delivery.Unreachable)
		db.Close()
	}
	classIs(t, "the driver's promise", driver.ErrBadConn, delivery.Unreachable)
	classIs(t, "too many connections", &mysql.MySQLError{Number: 1040, SQLState: [5]byte{'0', '8', '0', '0', '4'}}, delivery.Retryable)
}

func TestUnlistedServerErrorIsRetryable(t *testing.T) {
	t.Parallel()
	classIs(t, "HY000", &mysql.MySQLError{Number: 65000, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}}, delivery.Retryable)
	classIs(t, "no SQLSTATE", &mysql.MySQLError{Number: 65000}, delivery.Retryable)
	classIs(t, "wrapped", fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: 1062}), delivery.Duplicate)
}
