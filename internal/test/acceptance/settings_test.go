package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/testdb"
)

// setting is a DSN parameter that changes the meaning of a write.
type setting struct {
	driver, name  string
	writer, other string
	// same is another way to write writer; empty if there is none.
	same string
}

var settings = []setting{
	{driver: testdb.DriverMySQL, name: "loc", writer: "Asia/Tokyo", other: "UTC"},
	{driver: testdb.DriverMySQL, name: "time_zone", writer: "'+09:00'", other: "'+00:00'", same: "\"+09:00\""},
	{driver: testdb.DriverMySQL, name: "sql_mode", writer: "'ANSI_QUOTES'", other: "''", same: "'ansi_quotes'"},
	{driver: testdb.DriverMySQL, name: "timeTruncate", writer: "1s", other: "1ms", same: "1000ms"},
	{driver: testdb.DriverPostgres, name: "timezone", writer: "Asia/Tokyo", other: "UTC"},
	{driver: testdb.DriverPostgres, name: "search_path", writer: "other,public", other: "public", same: "Other, PUBLIC"},
	{driver: testdb.DriverPostgres, name: "datestyle", writer: "SQL, DMY", other: "ISO", same: "dmy,sql"},
	{driver: testdb.DriverSQLite, name: "_timezone", writer: "Asia/Tokyo", other: "UTC"},
	{driver: testdb.DriverSQLite, name: "_time_format", writer: "sqlite", other: "datetime"},
}

func TestJobDeliversWithTheLoggedSettings(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		t.Run(s.driver+" "+s.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, s.driver)
			r := newRig(t, db, noSyncRetry)
			r.account(100)
			writer := r.open(withParam(impatient(db), s.name, s.writer).DSN)
			jobs := map[string]string{"another": withParam(db, s.name, s.other).DSN, "none": db.DSN, "the same": withParam(db, s.name, s.writer).DSN}
			if s.same != "" {
				jobs["the same, spelled otherwise"] = withParam(db, s.name, s.same).DSN
			}
			balance := 100
			for what, dsn := range jobs {
				balance--
				free := r.blockRow(1)
				_, err := writer.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), balance, 1)
				free()
				wantPending(t, err)
				if report := r.deliverTo(t, r.wantOneLog().DataSource, dsn); report.Delivered != 1 {
					t.Errorf("a job with %s %s: %s, %+v", what, s.name, report, r.logs())
				}
				r.wantBalances(balance)
				r.wantNoLog()
			}
		})
	}
}

// deliverTo runs a job with the given DSN for a data source. The log is due.
func (r *rig) deliverTo(t *testing.T, dataSource, dsn string) asyncjob.Report {
	t.Helper()
	tgt, err := target(r.db.Driver)(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.logs() {
		// A unit pushed back rests; an operator makes it due.
		if err := r.storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
	}
	report, err := r.jobFor(asyncjob.Targets{dataSource: tgt}).RunOnce(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestJobStoresInstantsLikeTheWriter(t *testing.T) {
	t.Parallel()
	zones := testdb.By[map[string]string]{
		MySQL:    map[string]string{"loc": "Asia/Tokyo", "time_zone": "'+09:00'"},
		Postgres: map[string]string{"timezone": "Asia/Tokyo"},
		SQLite:   map[string]string{"_timezone": "Asia/Tokyo", "_time_format": "sqlite"},
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		zone, err := time.LoadLocation("America/New_York")
		if err != nil {
			t.Fatal(err)
		}
		instant := time.Date(2024, 7, 1, 23, 30, 15, 123456000, zone)
		r := newRig(t, db, noSyncRetry)
		r.account(100)
		kind := testdb.By[string]{MySQL: "DATETIME(6)", Postgres: "TIMESTAMP", SQLite: "TEXT"}.For(db.Driver)
		stamp := testdb.By[string]{MySQL: "TIMESTAMP(6) NULL", Postgres: "TIMESTAMPTZ", SQLite: "TEXT"}.For(db.Driver)
		r.exec("CREATE TABLE happened (id INT PRIMARY KEY, wall " + kind + ", instant " + stamp + ")")
		there := impatient(db)
		for k, v := range zones.For(db.Driver) {
			there, db = withParam(there, k, v), withParam(db, k, v)
		}
		writer := r.open(there.DSN)
		insert := r.q("INSERT INTO happened VALUES (?, ?, ?)")
		if _, err := writer.Exec(insert, 1, instant, instant); err != nil {
			t.Fatal(err)
		}
		free := r.blockInsert()
		_, err = writer.Exec(insert, 2, instant, instant)
		free()
		wantPending(t, err)
		if report := r.deliverTo(t, r.wantOneLog().DataSource, db.DSN); report.Delivered != 1 {
			t.Fatalf("the job: %s", report)
		}
		if n := r.count("SELECT count(*) FROM happened a JOIN happened b ON a.id = 1 AND b.id = 2 AND a.wall = b.wall AND a.instant = b.instant"); n != 1 {
			var a, b string
			_ = r.bare.QueryRow("SELECT CAST(wall AS CHAR(40)) FROM happened WHERE id = 1").Scan(&a)
			_ = r.bare.QueryRow("SELECT CAST(wall AS CHAR(40)) FROM happened WHERE id = 2").Scan(&b)
			t.Errorf("the writer stored %s, the job %s", a, b)
		}
	})
}

// blockInsert keeps everybody from inserting the row 2 until free is called.
func (r *rig) blockInsert() (free func()) {
	r.t.Helper()
	if r.db.Driver == testdb.DriverSQLite {
		return r.blockRow(1)
	}
	tx, err := r.bare.Begin()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO happened (id) VALUES (2)"); err != nil {
		r.t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

func TestSettingsAreLoggedWithoutPassword(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	r := newRig(t, db, noSyncRetry)
	r.account(100)
	db = withParam(withParam(impatient(db), "loc", "Asia/Tokyo"), "time_zone", "'+09:00'")
	free := r.blockRow(1)
	_, err := r.open(db.DSN).Exec("UPDATE account SET balance = 1 WHERE id = 1")
	free()
	wantPending(t, err)
	if u := r.wantOneLog(); u.Settings != "loc=Asia/Tokyo;time_zone='+09:00'" {
		t.Errorf("the log's settings are %q", u.Settings)
	}
}
