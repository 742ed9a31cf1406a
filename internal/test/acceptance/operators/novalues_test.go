package operators

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// quoting are writes whose error quotes the parameter, by database.
var quoting = testdb.By[struct {
	schema []string
	writes map[string]string // by what the error is
}]{
	MySQL: struct {
		schema []string
		writes map[string]string // by what the error is
	}{
		[]string{
			"CREATE TABLE note (name VARCHAR(60) PRIMARY KEY, n INT)",
			"CREATE TABLE deadlock (name VARCHAR(60))",
			"CREATE TRIGGER d BEFORE INSERT ON deadlock FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = NEW.name, MYSQL_ERRNO = 1205",
			"CREATE TABLE lost (name VARCHAR(60))",
			"CREATE TRIGGER l BEFORE INSERT ON lost FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = NEW.name, MYSQL_ERRNO = 1430",
		},
		map[string]string{
			"duplicate": "INSERT INTO note (name) VALUES (?)",
			"refused":   "UPDATE note SET n = ?",
			"retryable": "INSERT INTO deadlock VALUES (?)",
			"unknown":   "INSERT INTO lost VALUES (?)",
		},
	},
	Postgres: struct {
		schema []string
		writes map[string]string // by what the error is
	}{
		[]string{
			"CREATE TABLE note (name VARCHAR(60) PRIMARY KEY, n INT)",
			"CREATE FUNCTION raise() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION '%', NEW.name USING ERRCODE = TG_ARGV[0]; END $$ LANGUAGE plpgsql",
			"CREATE TABLE taken (name TEXT)",
			"CREATE TRIGGER t BEFORE INSERT ON taken FOR EACH ROW EXECUTE FUNCTION raise('23505')",
			"CREATE TABLE deadlock (name TEXT)",
			"CREATE TRIGGER d BEFORE INSERT ON deadlock FOR EACH ROW EXECUTE FUNCTION raise('40P01')",
			"CREATE TABLE lost (name TEXT)",
			"CREATE TRIGGER l BEFORE INSERT ON lost FOR EACH ROW EXECUTE FUNCTION raise('08006')",
		},
		map[string]string{
			"duplicate": "INSERT INTO taken VALUES (?)",
			"refused":   "UPDATE note SET n = ?::text::int",
			"retryable": "INSERT INTO deadlock VALUES (?)",
			"unknown":   "INSERT INTO lost VALUES (?)",
		},
	},
	SQLite: struct {
		schema []string
		writes map[string]string // by what the error is
	}{
		[]string{
			"CREATE TABLE note (name TEXT PRIMARY KEY, n INT)",
			"CREATE TABLE strict (name TEXT)",
			"CREATE TRIGGER s BEFORE INSERT ON strict BEGIN SELECT RAISE(ABORT, NEW.name); END",
		},
		map[string]string{
			"refused by a trigger": "INSERT INTO strict VALUES (?)",
			"refused":              "UPDATE note SET n = json_extract('{}', ?)",
		},
	},
}

func TestNoLogLineHoldsAParametersValue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			var lines rig.LogLines
			logDB := testdb.NewLog(t, db.Driver)
			db := db
			if guarantee == bedsql.ExactlyOnce {
				db = rig.FreshLike(t, db)
			}
			r := rig.NewWithLog(t, db, logDB, func(c *bedsql.Config) {
				c.Logger, c.Guarantee, c.SyncMaxDeliveryTryTimes = lines.Logger(), guarantee, 1
			})
			r.Exec(quoting.For(db.Driver).schema...)
			r.Exec("INSERT INTO note VALUES ('" + rig.SecretValue + "', 1)")
			for what, query := range quoting.For(db.Driver).writes {
				_, err := r.Wrapped.Exec(r.Q(query), rig.SecretValue)
				if err == nil || !strings.Contains(err.Error(), rig.SecretValue) {
					t.Fatalf("%s: the server was to quote the value; it says %v", what, err)
				}
				soft, tx, err := bedsql.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.Wrapped.ExecContext(soft, r.Q(query), rig.SecretValue); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if err := tx.End(t.Context()); err == nil {
					t.Fatalf("%s: End reports nothing", what)
				}
			}
			// The job meets all of them, those that the application parked too.
			for _, u := range r.Logs() {
				if err := r.Storage.Retry(t.Context(), u.ID); err != nil {
					t.Fatal(err)
				}
			}
			logged := func(c *asyncjob.Config) { c.Logger, c.MaxDeliveryTryTimes = lines.Logger(), 2 }
			for range 2 {
				r.RunOnce(logged)
			}
			quoted := 0
			for _, u := range r.Logs() {
				if contended := strings.Contains(u.Statements[0].SQL, "deadlock"); u.Parked == contended { // which is no try
					t.Errorf("%s is parked: %v: %s", u.Statements[0].SQL, u.Parked, u.LastError)
				}
				if strings.Contains(u.LastError, rig.SecretValue) {
					quoted++
				}
			}
			if n := len(quoting.For(db.Driver).writes); quoted < n {
				t.Errorf("%d last errors quote the value, want at least %d: the servers' texts belong there", quoted, n)
			}
			text := lines.String()
			for _, want := range []string{"bed: the write is parked", "parked: an operator must retry or discard it"} {
				if !strings.Contains(text, want) {
					t.Errorf("the log lines do not say %q:\n%s", want, text)
				}
			}
			if strings.Contains(text, rig.SecretValue) {
				t.Errorf("a value is in a log line:\n%s", text)
			}
		}
	})
}

// quotingLog makes the log's own database refuse rows matching when, and quote a column of them.
func quotingLog(driver, event, when, column string) []string {
	switch driver {
	case testdb.DriverMySQL:
		return []string{fmt.Sprintf("CREATE TRIGGER q%s BEFORE %[1]s ON transaction_log FOR EACH ROW BEGIN DECLARE m VARCHAR(120); "+
			"IF %s THEN SET m = RIGHT(COALESCE(NEW.%s, ''), 120); SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = m; END IF; END", event, when, column)}
	case testdb.DriverPostgres:
		return []string{
			fmt.Sprintf("CREATE FUNCTION q%s() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION '%%', NEW.%s; END $$ LANGUAGE plpgsql", event, column),
			fmt.Sprintf("CREATE TRIGGER q%s BEFORE %[1]s ON transaction_log FOR EACH ROW WHEN (%s) EXECUTE FUNCTION q%[1]s()", event, when),
		}
	default:
		return []string{fmt.Sprintf("CREATE TRIGGER q%s BEFORE %[1]s ON transaction_log WHEN %s BEGIN SELECT RAISE(ABORT, NEW.%s); END", event, when, column)}
	}
}

func TestLogLinesHoldNoValuesFromTheLog(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var lines rig.LogLines
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Logger, c.RunUnlogged = lines.Logger(), true
		})
		r.Exec(quoting.For(db.Driver).schema...)
		r.Exec("INSERT INTO note VALUES ('row', 1)")
		bareLog := r.LogDB.Open(t)
		trigger := func(event, when, column string) {
			t.Helper()
			for _, q := range quotingLog(db.Driver, event, when, column) {
				if _, err := bareLog.Exec(q); err != nil {
					t.Fatalf("%s: %v", q, err)
				}
			}
		}
		soft, tx, err := bedsql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused := r.Q(quoting.For(db.Driver).writes["refused"])
		exec := func() {
			t.Helper()
			if _, err := r.Wrapped.ExecContext(soft, refused, rig.SecretValue); err != nil {
				t.Fatal(err)
			}
		}
		exec() // parked, and made due for the job
		first := r.WantOneLog()
		if err := r.Storage.Retry(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := bareLog.Exec("UPDATE transaction_log SET last_error = NULL"); err != nil {
			t.Fatal(err)
		}
		// This also covers renewals, so that the job gives up at the end of its lease.
		trigger("UPDATE", "NEW.last_error IS NOT NULL OR NEW.lease_token = OLD.lease_token", "last_error")
		exec() // its verdict cannot be written, and neither can the job's
		if err := tx.End(t.Context()); err == nil {
			t.Fatal("End reports nothing")
		}
		job := r.Job(func(c *asyncjob.Config) { c.Logger, c.Lease = lines.Logger(), 5*time.Second })
		if _, err := job.RunOnce(t.Context()); err == nil || strings.Contains(err.Error(), rig.SecretValue) {
			t.Errorf("the job ended with %v", err)
		}
		trigger("INSERT", "NEW.parameters IS NOT NULL", "parameters")
		if _, err := r.Wrapped.Exec(r.Q("INSERT INTO note (name) VALUES (?)"), rig.SecretValue); err != nil {
			t.Fatal(err)
		}
		text := lines.String()
		for _, want := range []string{"the log did not confirm that the entry was handed over", "the outcome of the unit could not be written to the log", "the write runs UNLOGGED"} {
			if !strings.Contains(text, want) {
				t.Errorf("the log lines do not say %q:\n%s", want, text)
			}
		}
		if strings.Contains(text, rig.SecretValue) {
			t.Errorf("a value is in a log line:\n%s", text)
		}
	})
}
