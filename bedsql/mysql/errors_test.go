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

// MySQL 5.6 has no generated columns, and ignores CHECK.
func TestConstraintsOfNewerServersRefuse(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema)
	for text, has := range map[string]string{
		"INSERT INTO t (id, n) VALUES (2, -1)":      "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name = 'CHECK_CONSTRAINTS'",
		"INSERT INTO t (id, n, g) VALUES (2, 1, 1)": "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'g'",
	} {
		t.Run(text, func(t *testing.T) {
			var there bool
			if err := db.QueryRowContext(t.Context(), has).Scan(&there); err != nil {
				t.Fatal(err)
			}
			if !there {
				t.Skip("the server has no such constraint")
			}
			_, err := db.ExecContext(t.Context(), text)
			classIs(t, text, err, dialect.Refused)
		})
	}
}

func TestServerRefusesWithoutPrivilege(t *testing.T) {
	t.Parallel()
	target := testdb.MySQL(t)
	db := target.Open(t)
	must(t, db, schema)
	user := target.Name[max(0, len(target.Name)-16):] // MySQL 5.6 takes no longer one
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
