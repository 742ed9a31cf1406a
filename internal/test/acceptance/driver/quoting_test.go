package driver

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Quotes are read as the session reads them, whether the DSN or the server sets that.
func TestAmbiguousQuotesAreReadAsOneWrite(t *testing.T) {
	t.Parallel()
	plain := "UPDATE account SET note = 'C:\\', balance = CASE WHEN note = '; DELETE FROM account; --' THEN 0 ELSE 90 END WHERE id = 1"
	escaped := `UPDATE account SET note = 'it\'s; DELETE FROM account; --', balance = 90 WHERE id = 1`
	for name, c := range map[string]struct {
		db          func(t *testing.T) testdb.DB
		write, note string
	}{
		"mysql, by the DSN": {func(t *testing.T) testdb.DB {
			return rig.WithParam(testdb.MySQL(t), "sql_mode", "'NO_BACKSLASH_ESCAPES'")
		}, plain, `C:\`},
		"mysql, by the server": {func(t *testing.T) testdb.DB {
			return testdb.PrivateMariaDB(t, "--sql-mode=NO_BACKSLASH_ESCAPES,ANSI_QUOTES").DB(t)
		}, strings.Replace(plain, "account SET", `"account" SET`, 1), `C:\`},
		"postgres, by the DSN": {func(t *testing.T) testdb.DB {
			return rig.WithParam(testdb.Postgres(t), "standard_conforming_strings", "off")
		}, escaped, "it's; DELETE FROM account; --"},
		"postgres, by the server": {func(t *testing.T) testdb.DB {
			db := testdb.Postgres(t)
			if _, err := db.Open(t).Exec("ALTER DATABASE " + db.Name + " SET standard_conforming_strings = off"); err != nil {
				t.Fatal(err)
			}
			return db
		}, escaped, "it's; DELETE FROM account; --"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.db(t)
			for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
				adds := 0
				r := rig.New(t, db, func(cfg *bedsql.Config) {
					cfg.Guarantee, cfg.Pinned, cfg.Storage = guarantee, bedsql.PinnedRefuse, rig.CountAdds(cfg.Storage, &adds)
				})
				r.Exec("DROP TABLE IF EXISTS account", "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL, note VARCHAR(100))", "INSERT INTO account VALUES (1, 100, NULL)")
				if _, err := r.Wrapped.Exec(c.write); err != nil {
					t.Fatal(err)
				}
				var note sql.NullString
				if err := r.Bare.QueryRow("SELECT note FROM account WHERE balance = 90").Scan(&note); err != nil || note.String != c.note {
					t.Errorf("the note is %q (%v), want %q", note.String, err, c.note)
				}
				if adds != 1 {
					t.Errorf("it was logged %d times", adds)
				}
			}
		})
	}
}

func TestUnhandledTriggerNotFoundIsARefusal(t *testing.T) {
	t.Parallel()
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t)} {
		r := rig.New(t, db)
		r.Account(100)
		if db.Driver == testdb.DriverMySQL {
			r.Exec("CREATE TRIGGER never BEFORE UPDATE ON account FOR EACH ROW SIGNAL SQLSTATE '02123' SET MESSAGE_TEXT = 'never'")
		} else {
			r.Exec("CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never' USING ERRCODE = '02123'; END $$",
				"CREATE TRIGGER never BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION never()")
		}
		_, bare := r.Bare.Exec("UPDATE account SET balance = 90")
		_, err := r.Wrapped.Exec("UPDATE account SET balance = 90")
		if bare == nil || err == nil || err.Error() != bare.Error() {
			t.Errorf("%s: %v, by the bare driver %v", db.Driver, err, bare)
		}
		r.WantNoLog()
	}
}

// While the database is down there is no session to ask how it reads quotes.
func TestWriteWithUnknownQuotingIsLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db          func(t *testing.T) testdb.DB
		write, note string
	}{
		"mysql": {func(t *testing.T) testdb.DB { return testdb.MySQL(t) }, `INSERT INTO account VALUES (2, 90, 'it\'s')`, "it's"},
		"mysql, by the DSN": {func(t *testing.T) testdb.DB {
			return rig.WithParam(testdb.MySQL(t), "sql_mode", "'NO_BACKSLASH_ESCAPES'")
		}, `INSERT INTO account VALUES (2, 90, 'C:\')`, `C:\`},
		"postgres": {func(t *testing.T) testdb.DB { return testdb.Postgres(t) }, `INSERT INTO account VALUES (2, 90, 'C:\')`, `C:\`},
		"postgres, by the DSN": {func(t *testing.T) testdb.DB {
			return rig.WithParam(testdb.Postgres(t), "standard_conforming_strings", "off")
		}, `INSERT INTO account VALUES (2, 90, 'it\'s')`, "it's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, proxy := rig.NewDown(t, c.db(t), rig.NoSyncRetry)
			r.Exec("DROP TABLE IF EXISTS account", "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL, note VARCHAR(100))")
			_, err := r.Wrapped.Exec(c.write)
			rig.WantPending(t, err)
			proxy.Accept()
			if report := r.RunOnce(); report.Delivered != 1 {
				t.Errorf("the job: %s", report)
			}
			var note sql.NullString
			if err := r.Bare.QueryRow("SELECT note FROM account WHERE balance = 90").Scan(&note); err != nil || note.String != c.note {
				t.Errorf("the note is %q (%v), want %q", note.String, err, c.note)
			}
		})
	}
}
