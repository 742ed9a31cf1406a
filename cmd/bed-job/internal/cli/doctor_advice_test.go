package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

// account makes an account with rights on a database, and returns its DSN.
func account(t *testing.T, db testdb.DB, attributes string, rights ...string) testdb.DB {
	t.Helper()
	pool := db.Open(t)
	name := "d" + db.Name[max(0, len(db.Name)-20):]
	run := func(text string) {
		if _, err := pool.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	drop := []string{"DROP OWNED BY " + name, "DROP ROLE " + name}
	to := name
	if db.Driver == testdb.DriverMySQL {
		to = name + "@'%'"
		drop = []string{"DROP USER " + to}
		run("CREATE USER " + to + " IDENTIFIED BY 'x' " + attributes)
		db.DSN = strings.Replace(db.DSN, "root@", name+":x@", 1)
	} else {
		run("CREATE ROLE " + name + " LOGIN " + attributes)
		db.DSN = strings.Replace(db.DSN, "postgres@", name+"@", 1)
	}
	t.Cleanup(func() {
		for _, text := range drop {
			_, _ = pool.ExecContext(context.Background(), text)
		}
	})
	for _, r := range rights {
		run("GRANT " + r + " TO " + to)
	}
	return db
}

// withReceipts is account for a target with bed's tables.
func withReceipts(t *testing.T, db testdb.DB, rights ...string) testdb.DB {
	t.Helper()
	text, err := attempt.TargetSchema(db.Driver)
	if err != nil {
		t.Fatal(err)
	}
	(&installed{t: t}).exec(db, text)
	return account(t, db, "", append(rights, "SELECT, INSERT, UPDATE, DELETE ON bed_receipt", "SELECT, INSERT, UPDATE, DELETE ON bed_order")...)
}

func sqliteFile(t *testing.T) testdb.DB {
	path := filepath.Join(t.TempDir(), "some.db")
	return testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)", Name: path}
}

func servers(t *testing.T, f func(t *testing.T, db testdb.DB)) {
	t.Parallel()
	for name, make := range map[string]func(testing.TB) testdb.DB{"mariadb": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f(t, make(t)) })
	}
}

func TestDoctorFindsSenselessConfigurations(t *testing.T) {
	t.Parallel()
	for job, check := range map[string]string{
		"leaseMillis: 5, probeTimeoutMillis: 1": "too-short", "retryDelayMaxMillis: 94608000000": "too-long", "maxDeliveryTryDelayMillis: 94608000000": "too-long",
		"unknownDataSourceDelayMillis: 94608000000": "too-long",
	} {
		in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": sqliteFile(t)})
		in.job = job
		status, report, text := in.doctor(app{})
		if status != 1 || report.Findings[0].Check != check {
			t.Errorf("%s: status %d:\n%s", job, status, text)
		}
	}
	named := install(t, sqliteFile(t), map[string]testdb.DB{"orders": sqliteFile(t)})
	named.sources["orders"] = with(named.sources["orders"], "bedDataSource=other")
	named.wrong("name", "bedDataSource")
	forgot := install(t, sqliteFile(t), map[string]testdb.DB{"orders": sqliteFile(t)})
	forgot.exec(forgot.log, "DELETE FROM bed_log")
	forgot.wrong("identity", "backup")
	empty := install(t, sqliteFile(t), map[string]testdb.DB{"orders": sqliteFile(t)})
	empty.exec(empty.sources["orders"], "DROP TABLE account")
	empty.wrong("database", "fix the database's name")
}

func TestDoctorFindsSenselessSessions(t *testing.T) {
	servers(t, func(t *testing.T, db testdb.DB) {
		for params, check := range map[string]map[string]string{
			testdb.DriverMySQL:    {"innodb_lock_wait_timeout=0": "lock-wait", "transaction_isolation=%27READ-UNCOMMITTED%27": "isolation", "tx_isolation=%27READ-UNCOMMITTED%27": "isolation", "no_such_setting=1": "dsn-parameter"},
			testdb.DriverPostgres: {"lock_timeout=90ms": "lock_timeout", "no_such_setting=1": "dsn-parameter"},
		}[db.Driver] {
			if strings.HasPrefix(params, "transaction_isolation") {
				continue // MariaDB has the older name
			}
			in := install(t, sqliteFile(t), nil)
			target := db
			in.sources = map[string]testdb.DB{"orders": target}
			in.exec(db, "DROP TABLE IF EXISTS account", "CREATE TABLE account (id INT PRIMARY KEY)")
			in.sources["orders"] = with(target, params)
			status, report, text := in.doctor(app{})
			if status != 1 || len(report.Findings) != 1 || report.Findings[0].Check != check {
				t.Errorf("%s: status %d, want %s:\n%s", params, status, check, text)
			}
		}
	})
}

func TestDoctorAcceptsAnAccountThatOnlyInserts(t *testing.T) {
	servers(t, func(t *testing.T, db testdb.DB) {
		in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
		in.sources["orders"] = withReceipts(t, db, "INSERT ON account")
		status, report, text := in.doctor(app{})
		if status != 0 || len(report.Warnings) != 0 || len(report.Checked) < 3 {
			t.Errorf("status %d:\n%s", status, text)
		}
	})
}

func TestDoctorAcceptsTheLeastRightsOnTheLog(t *testing.T) {
	servers(t, func(t *testing.T, db testdb.DB) {
		in := install(t, db, map[string]testdb.DB{"orders": sqliteFile(t)})
		rights := []string{ // docs/table.md: job and console operate
			"SELECT, UPDATE, DELETE ON transaction_log", "SELECT, UPDATE, DELETE ON bed_order_key", "SELECT, INSERT, DELETE ON bed_order_queue",
			"SELECT, INSERT ON bed_log", "SELECT, INSERT, DELETE ON bed_attempt", "SELECT, INSERT ON bed_audit",
			"SELECT, INSERT, UPDATE, DELETE ON bed_activity", "SELECT, INSERT, UPDATE, DELETE ON bed_data_source",
		}
		if db.Driver == testdb.DriverMySQL {
			rights = append(rights, "UPDATE ON bed_log")
		}
		in.logDSN = account(t, db, "", rights...).DSN
		in.right()
	})
}

func TestDoctorWarnsOfAccountsThatMayDoTooMuch(t *testing.T) {
	servers(t, func(t *testing.T, db testdb.DB) {
		in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
		what := "superuser"
		if db.Driver == testdb.DriverMySQL {
			what = "ALL PRIVILEGES"
		}
		status, report, text := in.doctor(app{}) // the administrator's account
		if status != 0 || len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], what) {
			t.Errorf("status %d:\n%s", status, text)
		}
		right, much := "pg_execute_server_program", "pg_execute_server_program"
		if db.Driver == testdb.DriverMySQL {
			right, much = "FILE ON *.*", "FILE"
		}
		in.sources["orders"] = withReceipts(t, db, "INSERT ON account", right)
		status, report, text = in.doctor(app{})
		if status != 0 || len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], much) {
			t.Errorf("status %d:\n%s", status, text)
		}
	})
}

func TestDoctorKnowsWhyALogInFails(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
	in.sources["orders"] = account(t, db, "PASSWORD EXPIRE", "INSERT ON account")
	in.wrong("password", "ALTER USER")
	locked := testdb.MySQL(t)
	in = install(t, sqliteFile(t), map[string]testdb.DB{"orders": locked})
	in.sources["orders"] = account(t, locked, "ACCOUNT LOCK", "INSERT ON account")
	in.wrong("access", "UNLOCK")
	plain := testdb.Postgres(t)
	in = install(t, sqliteFile(t), map[string]testdb.DB{"orders": plain})
	in.sources["orders"] = testdb.DB{Driver: plain.Driver, Name: plain.Name, DSN: strings.Replace(plain.DSN, "sslmode=disable", "sslmode=require", 1)}
	if in.sources["orders"].DSN == plain.DSN {
		in.sources["orders"] = with(plain, "sslmode=require")
	}
	var on string
	if pool, err := sql.Open(plain.SQLDriver(), plain.DSN); err != nil || errors.Join(pool.QueryRow("SHOW ssl").Scan(&on), pool.Close()) != nil || on != "off" {
		return // a server with TLS takes it
	}
	in.wrong("tls", "sslmode")
}

// letIn has a private PostgreSQL let in only what the lines of pg_hba.conf say.
func letIn(t *testing.T, server *testdb.Server, lines ...string) {
	t.Helper()
	dir := filepath.Dir(value(t, server.DB(t), "SHOW hba_file"))
	path := filepath.Join(dir, "doctor_hba.conf")
	server.Exec("COPY (SELECT unnest(ARRAY['" + strings.Join(lines, "', '") + "'])) TO '" + path + "'")
	server.RestartWith("hba_file=" + path)
}

func value(t *testing.T, db testdb.DB, query string) (v string) {
	t.Helper()
	if err := db.Open(t).QueryRowContext(t.Context(), query).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDoctorFindsThatAServerTakesOnlyTLS(t *testing.T) {
	t.Parallel()
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		server := testdb.PrivateMariaDB(t)
		in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": server.DB(t)})
		server.Exec("SET GLOBAL require_secure_transport = ON")
		in.wrong("access", "tls=true") // the server denies access, and does not say why
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := testdb.PrivatePostgres(t)
		db := server.DB(t)
		in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
		letIn(t, server, "host postgres all 127.0.0.1/32 trust", "hostssl all all 127.0.0.1/32 trust")
		in.wrong("tls", "sslmode")
	})
}

func TestDoctorNamesExpiryWherePostgresRefusesAPassword(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t)
	in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": server.DB(t)})
	server.Exec("CREATE ROLE late LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01'")
	letIn(t, server, "host all late 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 trust")
	late := in.sources["orders"]
	late.DSN = strings.Replace(late.DSN, "postgres@", "late:x@", 1)
	in.sources["orders"] = late
	in.wrong("access", "VALID UNTIL")
}

func TestDoctorFindsRowSecurity(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
	in.exec(db, "ALTER TABLE account ENABLE ROW LEVEL SECURITY")
	in.sources["orders"] = withReceipts(t, db, "SELECT, INSERT, UPDATE, DELETE ON account")
	in.wrong("row-security", "BYPASSRLS")
}

func TestDoctorSaysThatItMayNotSeeEvents(t *testing.T) {
	t.Parallel()
	db := testdb.PrivateMariaDB(t, "--event-scheduler=ON").DB(t)
	in := install(t, db, map[string]testdb.DB{"orders": sqliteFile(t)})
	in.exec(db, "CREATE EVENT empties ON SCHEDULE EVERY 1 YEAR STARTS CURRENT_TIMESTAMP + INTERVAL 1 YEAR DO DELETE FROM transaction_log")
	in.logDSN = account(t, db, "", fmt.Sprintf("SELECT, INSERT, UPDATE, DELETE ON `%s`.*", db.Name)).DSN
	status, report, text := in.doctor(app{})
	if len(report.Unseen) != 1 || !strings.Contains(report.Unseen[0], "EVENT") || status == 0 {
		t.Errorf("status %d:\n%s", status, text)
	}
}

func TestTruncatedHashIsCalledThat(t *testing.T) {
	t.Parallel()
	_, err := parseConfig("f.yaml", []byte(twoSQLite+"console: {users: [{name: ann, passwordHash: \"$2a$10$7EqJtq98hPqEX7\", role: read}]}\n"), env(nil), wholeFile)
	if err == nil || !strings.Contains(err.Error(), "60 characters") {
		t.Error(err)
	}
}

func TestDoctorFindsPublicationsOfAllTables(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	in := install(t, sqliteFile(t), map[string]testdb.DB{"orders": db})
	in.exec(db, "CREATE PUBLICATION everything FOR ALL TABLES")
	in.wrong("publication", "--targets")
	withReceipts(t, db)
	if status, report, text := in.doctor(app{}); status != 0 || !strings.Contains(strings.Join(report.Warnings, " "), "everything") {
		t.Errorf("status %d:\n%s", status, text)
	}
}

func TestDoctorFindsOneNameForTwoDatabases(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(testing.TB) testdb.DB{"mariadb": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t, make(t), map[string]testdb.DB{"orders": make(t)})
			oldEntry(t, in, func(u *entry.Unit) { u.Place = "elsewhere" })
			in.wrong("place", "a name of its own")
		})
	}
}

// A group's compensation names its first data source, and not its settings: its parts have theirs.
func TestDoctorTriesTheSessionsOfACompensationsParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings string
		found    bool
	}{"the service's": {"bedCall=1", false}, "a database's": {"", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t, sqliteFile(t), map[string]testdb.DB{})
			in.sources["orders"] = testdb.DB{Driver: "http", DSN: "http://127.0.0.1:1"}
			oldEntry(t, in, func(u *entry.Unit) {
				u.Settings, u.Statements = "", []entry.Statement{{SQL: "CALL POST /refunds", Part: 1}}
				u.Undo = &entry.Undo{Parts: []entry.Part{{Unit: entry.NewID(), Receipt: "r", DataSource: "orders", Settings: c.settings}}}
			})
			if _, _, text := in.doctor(app{}); strings.Contains(text, "entries are not delivered") != c.found {
				t.Errorf("doctor reports\n%s", text)
			}
		})
	}
}
