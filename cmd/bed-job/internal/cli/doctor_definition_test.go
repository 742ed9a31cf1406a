package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// keyless makes one of bed's tables without its primary key.
func keyless(t *testing.T, in *installed, db testdb.DB, table string) {
	t.Helper()
	ofTarget := table != "transaction_log"
	if ofTarget {
		receiptTableIn(t, in, db)
	}
	switch db.Driver {
	case testdb.DriverMySQL:
		in.exec(db, "ALTER TABLE "+table+" DROP PRIMARY KEY")
	case testdb.DriverPostgres:
		in.exec(db, "ALTER TABLE "+table+" DROP CONSTRAINT "+map[string]string{"bed_receipt": "bed_receipt_id", "bed_order": "bed_order_pkey", "transaction_log": "transaction_log_pkey"}[table])
	default:
		text, err := schema(db.Driver, !ofTarget, ofTarget, whole)
		if err != nil {
			t.Fatal(err)
		}
		text = text[strings.Index(text, "CREATE TABLE IF NOT EXISTS "+table):]
		text, rest, _ := strings.Cut(text, ";\n")
		text = strings.NewReplacer(", -- not purged before\n  PRIMARY KEY (id)", "", "\n  PRIMARY KEY (id)", "", "DEFAULT 0,", "DEFAULT 0", " PRIMARY KEY", "", " WITHOUT ROWID", "").Replace(text)
		in.exec(db, "DROP TABLE "+table, text)
		if table == "transaction_log" {
			in.exec(db, rest)
		}
	}
}

func receiptTableIn(t *testing.T, in *installed, db testdb.DB) {
	t.Helper()
	text, err := schema(db.Driver, false, true, whole)
	if err != nil {
		t.Fatal(err)
	}
	in.exec(db, text)
}

// definitions are tables that differ from their schemas, for each kind of database.
func definitions(driver string) []wrongSetUp {
	log := func(name, check, remedy string, by map[string][]string) wrongSetUp {
		return wrongSetUp{name: name, check: check, remedy: remedy, log: by[driver]}
	}
	type sql = map[string][]string
	all := []wrongSetUp{
		{name: "order keys without their key", check: "key", remedy: "bed_order", make: func(t *testing.T, in *installed) { keyless(t, in, in.sources["orders"], "bed_order") }},
		{name: "order keys that a late write passes", check: "definition", remedy: "bed_order", make: func(t *testing.T, in *installed) {
			receiptTableIn(t, in, in.sources["orders"])
			in.exec(in.sources["orders"], sql{
				testdb.DriverMySQL:    {"ALTER TABLE bed_order MODIFY last BIGINT"},
				testdb.DriverPostgres: {"ALTER TABLE bed_order ALTER COLUMN last DROP NOT NULL"},
				testdb.DriverSQLite:   {"ALTER TABLE bed_order DROP COLUMN last", "ALTER TABLE bed_order ADD COLUMN last BIGINT"},
			}[driver]...)
		}},
		{name: "receipts without their key", check: "key", remedy: "bed_receipt", make: func(t *testing.T, in *installed) { keyless(t, in, in.sources["orders"], "bed_receipt") }},
		{name: "a log without its key", check: "key", remedy: "transaction_log", make: func(t *testing.T, in *installed) { keyless(t, in, in.log, "transaction_log") }},
		log("a trigger that deletes from the log", "trigger", "drop", sql{
			testdb.DriverMySQL: {"CREATE TRIGGER tidy AFTER INSERT ON transaction_log FOR EACH ROW DELETE FROM bed_attempt"},
			testdb.DriverPostgres: {"CREATE FUNCTION tidy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM transaction_log; RETURN NULL; END $$",
				"CREATE TRIGGER tidy AFTER INSERT ON transaction_log EXECUTE PROCEDURE tidy()"},
			testdb.DriverSQLite: {"CREATE TRIGGER tidy AFTER INSERT ON transaction_log BEGIN DELETE FROM transaction_log; END"},
		}),
		log("a trigger that refuses in the log", "trigger", "drop", sql{
			testdb.DriverMySQL:    {"CREATE TRIGGER no BEFORE UPDATE ON transaction_log FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"},
			testdb.DriverPostgres: {"CREATE RULE no AS ON UPDATE TO transaction_log DO INSTEAD NOTHING"},
			testdb.DriverSQLite:   {"CREATE TRIGGER no BEFORE UPDATE ON transaction_log BEGIN SELECT RAISE(ABORT, 'no'); END"},
		}),
		log("a column of another type", "definition", "transaction_log", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log MODIFY parked VARCHAR(4) NOT NULL"},
			testdb.DriverPostgres: {"ALTER TABLE transaction_log ALTER COLUMN creation_time TYPE NUMERIC"},
			testdb.DriverSQLite:   {"ALTER TABLE transaction_log DROP COLUMN settings", "ALTER TABLE transaction_log ADD COLUMN settings INT NOT NULL DEFAULT 0"},
		}),
		log("a constraint of another's", "constraint", "drop", sql{
			testdb.DriverMySQL:    {"ALTER TABLE bed_attempt ADD CONSTRAINT few CHECK (creation_time < 5)"},
			testdb.DriverPostgres: {"ALTER TABLE bed_attempt ADD CONSTRAINT few CHECK (creation_time < 5)"},
			testdb.DriverSQLite:   {"CREATE UNIQUE INDEX few ON bed_attempt (creation_time)"},
		}),
		log("an index of other columns", "index", "bed-job schema", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log DROP KEY transaction_log_due, ADD KEY transaction_log_due (next_try_time)"},
			testdb.DriverPostgres: {"DROP INDEX transaction_log_due", "CREATE INDEX transaction_log_due ON transaction_log (next_try_time)"},
			testdb.DriverSQLite:   {"DROP INDEX transaction_log_due", "CREATE INDEX transaction_log_due ON transaction_log (next_try_time)"},
		}),
	}
	if driver == testdb.DriverSQLite { // bounds no column
		return all
	}
	return append(all,
		log("a statement that is cut", "definition", "ALTER TABLE transaction_log", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log MODIFY `sql` VARCHAR(100) NOT NULL"},
			testdb.DriverPostgres: {`ALTER TABLE transaction_log ALTER COLUMN "sql" TYPE VARCHAR(100)`},
		}),
		log("parameters that are cut", "definition", "ALTER TABLE transaction_log", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log MODIFY parameters TEXT NOT NULL"},
			testdb.DriverPostgres: {"ALTER TABLE transaction_log ALTER COLUMN parameters TYPE VARCHAR(10000)"},
		}),
		log("an error that must be there", "definition", "NULL", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log MODIFY last_error TEXT NOT NULL"},
			testdb.DriverPostgres: {"ALTER TABLE transaction_log ALTER COLUMN last_error SET NOT NULL"},
		}),
		log("a column that nobody fills", "definition", "default", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log ADD COLUMN tenant INT NOT NULL"},
			testdb.DriverPostgres: {"ALTER TABLE transaction_log ADD COLUMN tenant INT NOT NULL"},
		}),
		log("ids that are compared as words", "definition", "transaction_log", sql{
			testdb.DriverMySQL:    {"ALTER TABLE transaction_log MODIFY data_source VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"},
			testdb.DriverPostgres: {`ALTER TABLE transaction_log ALTER COLUMN data_source TYPE VARCHAR(255) COLLATE "und-x-icu"`},
		}),
	)
}

// notThere are databases missing at their DSNs.
func notThere(driver string) []wrongSetUp {
	replaced := func(in *installed, log bool, old, by string) {
		if log {
			in.logDSN = strings.Replace(in.log.DSN, old, by, 1)
			return
		}
		db := in.sources["orders"]
		db.DSN = strings.Replace(db.DSN, old, by, 1)
		in.sources["orders"] = db
	}
	var all []wrongSetUp
	for _, log := range []bool{true, false} {
		where := map[bool]string{true: "log", false: "target"}[log]
		named := func(in *installed) testdb.DB {
			if log {
				return in.log
			}
			return in.sources["orders"]
		}
		if driver == testdb.DriverSQLite {
			all = append(all, wrongSetUp{name: "a " + where + " whose file is not there", check: "unreachable", remedy: "path", make: func(_ *testing.T, in *installed) {
				replaced(in, log, named(in).Name, filepath.Join(in.t.TempDir(), "no.db"))
			}})
			continue
		}
		all = append(all,
			wrongSetUp{name: "a " + where + " that nobody listens for", check: "unreachable", remedy: "address", make: func(_ *testing.T, in *installed) {
				replaced(in, log, named(in).Addr(), "127.0.0.1:1")
			}},
			wrongSetUp{name: "a " + where + " that is not there", check: "database", remedy: "create it", make: func(_ *testing.T, in *installed) {
				replaced(in, log, "/"+named(in).Name, "/no_such_database")
			}},
			wrongSetUp{name: "an account that the " + where + " refuses", check: "access", remedy: "password", make: func(_ *testing.T, in *installed) {
				db := named(in)
				if driver == testdb.DriverPostgres {
					in.exec(db, `CREATE ROLE "denied_`+db.Name+`" NOLOGIN`)
					replaced(in, log, "postgres@", "denied_"+db.Name+":secret@")
					return
				}
				replaced(in, log, "root@", "nobody:secret@")
			}})
	}
	return all
}

func TestDoctorComparesTablesAndNamesUnreachableOnes(t *testing.T) {
	t.Parallel()
	maria, pg := testdb.PrivateMariaDB(t), testdb.PrivatePostgres(t)
	set := func(params string) func(*testing.T, *installed) {
		return func(_ *testing.T, in *installed) { in.sources["orders"] = with(in.sources["orders"], params) }
	}
	for driver, create := range (testdb.By[func() testdb.DB]{
		MySQL:    func() testdb.DB { return maria.DB(t) },
		Postgres: func() testdb.DB { return pg.DB(t) },
		SQLite: func() testdb.DB {
			path := filepath.Join(t.TempDir(), "some.db")
			return testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=busy_timeout(5000)", Name: path}
		},
	}).All() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			in := install(t, create(), map[string]testdb.DB{"orders": create()})
			receiptTableIn(t, in, in.sources["orders"])
			in.right()
			cases := append(definitions(driver), notThere(driver)...)
			cases = append(cases, wrongSetUp{name: "a round a year", check: "cron", remedy: "every 5 s", make: func(_ *testing.T, in *installed) { in.job = `cron: "0 0 0 1 1 ?"` }})
			switch driver {
			case testdb.DriverMySQL:
				cases = append(cases,
					wrongSetUp{name: "an event that empties the log", check: "trigger", remedy: "drop", log: []string{"CREATE EVENT tidy ON SCHEDULE EVERY 1 DAY DO DELETE FROM transaction_log WHERE creation_time < 5"}},
					wrongSetUp{name: "an event of another database that empties the log", check: "trigger", remedy: "drop", make: func(_ *testing.T, in *installed) {
						in.exec(in.sources["orders"], "CREATE EVENT tidy ON SCHEDULE EVERY 1 DAY DO DELETE FROM `"+in.log.Name+"`.transaction_log")
					}},
					wrongSetUp{name: "writes that are not in the binary log", check: "sql_log_bin", remedy: "remove", make: set("sql_log_bin=0")},
					wrongSetUp{name: "foreign keys that are not checked", check: "foreign_key_checks", remedy: "remove", make: set("foreign_key_checks=0")},
					wrongSetUp{name: "statements that are cut off", check: "max_statement_time", remedy: "at least 1s", make: set("max_statement_time=0.9")},
					wrongSetUp{name: "answers that are not waited for", check: "readTimeout", remedy: "at least 1s", make: set("readTimeout=900ms")},
					wrongSetUp{name: "connections that are soon closed", check: "wait_timeout", remedy: "at least 30s", make: set("wait_timeout=20")})
			case testdb.DriverPostgres:
				cases = append(cases,
					wrongSetUp{name: "triggers that do not fire", check: "session_replication_role", remedy: "remove", make: set("session_replication_role=replica")},
					wrongSetUp{name: "transactions that are soon ended", check: "idle_in_transaction_session_timeout", remedy: "at least 5s", make: set("idle_in_transaction_session_timeout=4900")})
			}
			for _, c := range cases {
				c.run(t, create(), create)
			}
		})
	}
}
