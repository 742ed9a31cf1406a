package asyncjob

import (
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// A client with write access to the log may write any text there. Each text here would create the
// table evil, or change the session for later deliveries.
var notOneDML = testdb.By[[]string]{
	MySQL: []string{
		"CREATE TABLE evil (id INT)", "INSERT INTO account VALUES (1, 'x'); CREATE TABLE evil (id INT)", "CREATE TABLE evil AS SELECT 1",
		"SELECT 1 INTO OUTFILE '/tmp/bed-evil'", "SELECT * FROM account", "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE account", "SET SESSION sql_mode = ''",
		"CALL nothing()", "DO SLEEP(0)", "BEGIN", "COMMIT", "USE mysql", "LOCK TABLES account WRITE", "TRUNCATE account", "DROP TABLE account",
		"BEGIN NOT ATOMIC CREATE TABLE evil (id INT); END", "EXECUTE IMMEDIATE 'CREATE TABLE evil (id INT)'", "PREPARE p FROM 'SELECT 1'",
		"/*!99999 INSERT INTO account VALUES (1, 'x') */ CREATE TABLE evil (id INT)", "/*!50000 CREATE TABLE evil (id INT) */",
		"/*!99999 INSERT INTO account VALUES (1, 'x') */ /*!50000 CREATE TABLE evil (id INT) # */ INSERT INTO account VALUES (2, 'x')\n */",
		"-- INSERT\nSHOW TABLES", "", "PUBLISH orders",
	},
	Postgres: []string{
		"CREATE TABLE evil (id INT)", "INSERT INTO account VALUES (1, 'x'); CREATE TABLE evil (id INT)", "SELECT 1 AS id INTO evil", "CREATE TABLE evil AS SELECT 1",
		"WITH a AS (INSERT INTO account VALUES (1, 'x') RETURNING id) SELECT id INTO evil FROM a", "SELECT * FROM account", "COPY account TO PROGRAM 'cat'",
		"COPY account FROM PROGRAM 'echo 1'", "DO $$ BEGIN CREATE TABLE evil (id INT); END $$", "CALL nothing()", "SET search_path = x", "BEGIN", "COMMIT",
		"TRUNCATE account", "DROP TABLE account", "LISTEN x", "LOCK account", "EXPLAIN ANALYZE CREATE TABLE evil AS SELECT 1", "PREPARE p AS SELECT 1", "VACUUM",
		`INSERT INTO account VALUES (1, 'a\'); CREATE TABLE evil (id INT); --')`, "", "PUBLISH orders",
	},
	SQLite: []string{
		"CREATE TABLE evil (id INT)", "INSERT INTO account VALUES (1, 'x'); CREATE TABLE evil (id INT)", "CREATE TABLE evil AS SELECT 1", "SELECT * FROM account",
		"ATTACH '/tmp/bed-evil.db' AS e", "PRAGMA writable_schema = 1", "DROP TABLE account", "VACUUM INTO '/tmp/bed-evil.db'", "BEGIN", "COMMIT", "", "PUBLISH orders",
	},
}

func TestTheJobRunsNothingButOneDML(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL {
			db.DSN += "&multiStatements=true"
		}
		pool, target, store := table(t, db), realTarget(t, db), newStore(t)
		texts := notOneDML.For(db.Driver)
		var units []*entry.Unit
		for _, text := range texts {
			units = append(units, addFor(t, store, target, false, text))
			units = append(units, addFor(t, store, target, false, "INSERT INTO account VALUES (9, 'first')", text))
			units = append(units, add(t, store, "orders", "", func(u *entry.Unit) {
				u.Settings, u.Receipt, u.Statements = target.Settings, u.ID, []entry.Statement{{SQL: text}}
			}))
		}
		kept := addFor(t, store, target, false, "INSERT INTO account VALUES (3, 'ours')")
		for range 3 {
			runOnce(t, newJob(t, store, Targets{"orders": target}, brittle()))
		}
		if n := rows(t, pool, "1 = 1"); n != 1 {
			t.Errorf("%d rows in the table instead of 1", n)
		}
		if _, err := pool.ExecContext(t.Context(), "SELECT * FROM evil"); err == nil {
			t.Error("a statement of the log created a table")
		}
		if _, err := store.Get(t.Context(), kept.ID); err == nil {
			t.Error("a write was not delivered")
		}
		for i, u := range units {
			got := get(t, store, u)
			if !got.Parked || got.InDoubt || !strings.Contains(got.LastError, "not one DML statement") {
				t.Errorf("%q (%d): parked %v, in doubt %v, %q", texts[i/3], i%3, got.Parked, got.InDoubt, got.LastError)
			}
		}
	})
}

// All legitimate entries of an application are still delivered.
func TestEveryFormOfDMLIsStillDelivered(t *testing.T) {
	t.Parallel()
	forms := testdb.By[[]string]{
		MySQL: []string{
			"/* traceparent */ INSERT /*!50000 IGNORE */ INTO account VALUES (1, 'a;b')", "REPLACE INTO account VALUES (2, '/*!99999 x */')",
			"-- c\nUPDATE account SET name = 'it''s; DROP' WHERE id = 2;", "INSERT INTO account SELECT 3, '; x'", `INSERT INTO account VALUES (4, 'a\'); --')`,
			"DELETE FROM account WHERE id = 8 RETURNING id",
		},
		Postgres: []string{
			"/* a */ INSERT INTO account VALUES (1, 'a;b') ON CONFLICT DO NOTHING", "WITH old AS (SELECT 7 AS id) DELETE FROM account USING old WHERE account.id = old.id",
			"INSERT INTO account VALUES (2, $$;$$) RETURNING id", "WITH a AS (INSERT INTO account VALUES (3, 'x') RETURNING id) SELECT * FROM a",
			"MERGE INTO account USING (SELECT 4 AS id) AS s ON account.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'm');", "UPDATE account SET name = E'a\\';' WHERE id = 1",
			`UPDATE account SET name = 'a\'`,
		},
		SQLite: []string{
			"INSERT OR REPLACE INTO account VALUES (1, 'a;b');", "WITH old AS (SELECT 7 AS id) DELETE FROM account WHERE id IN old", "REPLACE INTO account VALUES (2, 'x')",
			"INSERT INTO account VALUES (3, 'x') RETURNING id", "UPDATE account SET name = \"name\" /* to the end",
		},
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool, target, store := table(t, db), realTarget(t, db), newStore(t)
		for _, text := range forms.For(db.Driver) {
			if !testdb.Knows(t, pool, text) {
				continue
			}
			addFor(t, store, target, false, text)
			if r := runOnce(t, newJob(t, store, Targets{"orders": target}, brittle())); r.Delivered != 1 {
				units, _ := store.List(t.Context(), txlog.Filter{})
				t.Errorf("%q: %v, %s", text, r, units[len(units)-1].LastError)
			}
		}
	})
}

// The settings, session and place of an entry go into the job's statements.
func TestForgedSettingsRunNothing(t *testing.T) {
	t.Parallel()
	const evil = "CREATE TABLE evil (id INT)"
	settings := testdb.By[[]string]{
		MySQL: []string{
			"multiStatements=true;sql_mode=''%3B " + evil, "multiStatements=true;sql_mode='' -- %0A%3B " + evil, "multiStatements=true;sql_mode = ''%3B" + evil + "%3B SET @x=''",
			"sql_mode='', GLOBAL net_retry_count = 11", "GLOBAL net_retry_count=11", "@@global.net_retry_count=11", `sql_mode='\', @evil = 1 -- '`,
		},
		Postgres: []string{"options=-c session_preload_libraries=evil"},
		SQLite:   []string{"_pragma=foreign_keys(1)%3B " + evil, "_pragma=foreign_keys=1%3B" + evil, "_pragma=writable_schema(1)", "_pragma=temp_store_directory('/tmp')"},
	}
	sessions := testdb.By[[]string]{
		MySQL:    []string{`sql_mode=\;time_zone=, GLOBAL net_retry_count %3D 11 -- `, "global net_retry_count=11", "sql_mode %3D '', global net_retry_count=11"},
		Postgres: []string{"timezone=UTC'); " + evil + "; --", "x', 'y', false); " + evil + "; --=1"},
		SQLite:   nil,
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool, target, store := table(t, db), realTarget(t, db), newStore(t)
		var units []*entry.Unit
		forge := func(change func(*entry.Unit)) {
			units = append(units, add(t, store, "orders", "INSERT INTO account VALUES (1, 'x')", change))
		}
		for _, s := range settings.For(db.Driver) {
			forge(func(u *entry.Unit) { u.Settings = s })
		}
		for _, s := range sessions.For(db.Driver) {
			forge(func(u *entry.Unit) { u.Settings, u.Session = target.Settings, s })
		}
		for _, place := range []string{"(SELECT 1) AS x; " + evil + "; --", "`account` SET name = 'evil' -- ", `"account" SET name = 'evil' --`, "account SET name = 'evil' --"} {
			forge(func(u *entry.Unit) {
				u.Settings, u.Receipt, u.Place = target.Settings, u.ID, place
				u.Unreadable, u.Statements = nil, []entry.Statement{{SQL: evil}}
			})
		}
		mustExec(t, pool, "INSERT INTO account VALUES (7, 'somebody')")
		for range 3 {
			runOnce(t, newJob(t, store, Targets{"orders": target}, brittle()))
		}
		if n := rows(t, pool, "1 = 1"); n != 1 || rows(t, pool, "name = 'somebody'") != 1 {
			t.Errorf("%d rows in the table instead of somebody", n)
		}
		if _, err := pool.ExecContext(t.Context(), "SELECT * FROM evil"); err == nil {
			t.Error("an entry created a table")
		}
		if db.Driver == testdb.DriverMySQL {
			var n int
			if err := pool.QueryRowContext(t.Context(), "SELECT @@global.net_retry_count").Scan(&n); err != nil || n != 10 {
				t.Errorf("an entry changed the server: %d, %v", n, err)
			}
		}
		for _, u := range units {
			if got := get(t, store, u); got.LastError == "" {
				t.Errorf("nothing is said of %+v", got)
			}
		}
	})
}
