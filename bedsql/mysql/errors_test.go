package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/go-sql-driver/mysql"
)

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
	classIs(t, "no INSERT privilege", err, dialect.Refused)
	classIs(t, "wrong password", login("wrong", target.Name).Ping(), dialect.Refused)
	classIs(t, "no access to the database", login("right", "mysql").Ping(), dialect.Refused)
	cfg, _ := mysql.ParseDSN(target.DSN)
	cfg.DBName = target.Name + "_absent"
	absent, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer absent.Close()
	classIs(t, "unknown database", absent.Ping(), dialect.Refused)
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
	classIs(t, "one argument of two, as database/sql says it", err, dialect.Refused)
	small, err := sql.Open("mysql", withParam(target.DSN, "maxAllowedPacket=1024"))
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	_, err = small.Exec("INSERT INTO t (id, n, s) VALUES (1, 1, '" + strings.Repeat("x", 2000) + "')")
	classIs(t, "a packet that the driver does not send", err, dialect.Refused)

	// This bypasses the driver's checks: the statement gets too few values.
	c := conn(t, db)
	if err := c.Raw(func(dc any) error {
		s, err := dc.(driver.Conn).Prepare("INSERT INTO t (id, n) VALUES (?, ?)")
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), []driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
		classIs(t, "one argument of two", err, dialect.Refused)
		_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), []driver.NamedValue{{Ordinal: 1, Value: int64(1)}, {Ordinal: 2, Value: int32(1)}})
		classIs(t, "a type that is none of the driver's", err, dialect.Refused)
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
	// The server answers with error 1153 and hangs up. If it hangs up while the packet is still
	// being written, the error is unknown.
	if c := classify(err); c != dialect.Refused && c != dialect.Unknown {
		t.Errorf("%v is %v", err, c)
	}
}
