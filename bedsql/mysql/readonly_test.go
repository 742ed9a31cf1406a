package mysql

import (
	"context"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/testdb"
)

// asked returns the result of a data source's probe on its own connection.
func asked(t *testing.T, dsn string) error {
	t.Helper()
	target, err := Target(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var conn driver.Conn
	if conn, err = target.Connector.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return target.Dialect.Writable(t.Context(), conn)
}

func TestServerIsUpWhenItTakesAWrite(t *testing.T) {
	t.Parallel()
	s := testdb.PrivateMariaDB(t)
	db := s.DB(t)
	pool := db.Open(t)
	run := func(text string) {
		t.Helper()
		if _, err := pool.ExecContext(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	run("CREATE USER plain@'%' IDENTIFIED BY 'x'")
	run("GRANT ALL ON " + db.Name + ".* TO plain@'%'")
	plain := strings.Replace(db.DSN, "root@", "plain:x@", 1)
	if err := asked(t, plain); err != nil {
		t.Errorf("a server that takes writes: %v", err)
	}
	run("SET GLOBAL read_only = 1")
	if err := asked(t, plain); !isReadOnly(err) || !strings.Contains(err.Error(), "1290") {
		t.Errorf("under read_only: %v, want 1290", err)
	}
	if err := asked(t, db.DSN); err != nil {
		t.Errorf("under read_only, for an account that may write all the same: %v", err)
	}
	s.RestartWith("--innodb-read-only=1")
	if err := asked(t, plain); err == nil {
		t.Error("with innodb_read_only it is taken for one that takes writes")
	}
}

func TestErrorsOfServersThatTakeNoWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number  uint16
		message string
		want    bool
	}{
		{1047, "WSREP has not yet prepared node for application use", true},
		{1290, "The MariaDB server is running with the --read-only option so it cannot execute this statement", true},
		{1290, "The MySQL server is running with the --super-read-only option so it cannot execute this statement", true},
		{1290, "The MariaDB server is running with the --secure-file-priv option so it cannot execute this statement", false},
		{1792, "Cannot execute statement in a READ ONLY transaction", true},
		{1836, "Running in read-only mode", true},
		{1874, "InnoDB is in read only mode", true},
		{1036, "Table 't' is read only", false}, // it may be one table's
		{1213, "Deadlock found when trying to get lock", false},
	} {
		if got := isReadOnly(&mysql.MySQLError{Number: c.number, Message: c.message}); got != c.want {
			t.Errorf("%d %s: %v", c.number, c.message, got)
		}
	}
}
