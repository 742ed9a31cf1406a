package job

import (
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
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
			r := rig.New(t, db, rig.NoSyncRetry)
			r.Account(100)
			writer := r.Open(rig.WithParam(rig.Impatient(db), s.name, s.writer).DSN)
			jobs := map[string]string{"another": rig.WithParam(db, s.name, s.other).DSN, "none": db.DSN, "the same": rig.WithParam(db, s.name, s.writer).DSN}
			if s.same != "" {
				jobs["the same, spelled otherwise"] = rig.WithParam(db, s.name, s.same).DSN
			}
			balance := 100
			for what, dsn := range jobs {
				balance--
				free := r.BlockRow(1)
				_, err := writer.Exec(r.Q("UPDATE account SET balance = ? WHERE id = ?"), balance, 1)
				free()
				rig.WantPending(t, err)
				if report := r.DeliverTo(t, r.WantOneLog().DataSource, dsn); report.Delivered != 1 {
					t.Errorf("a job with %s %s: %s, %+v", what, s.name, report, r.Logs())
				}
				r.WantBalances(balance)
				r.WantNoLog()
			}
		})
	}
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
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		kind := testdb.By[string]{MySQL: "DATETIME(6)", Postgres: "TIMESTAMP", SQLite: "TEXT"}.For(db.Driver)
		stamp := testdb.By[string]{MySQL: "TIMESTAMP(6) NULL", Postgres: "TIMESTAMPTZ", SQLite: "TEXT"}.For(db.Driver)
		r.Exec("CREATE TABLE happened (id INT PRIMARY KEY, wall " + kind + ", instant " + stamp + ")")
		there := rig.Impatient(db)
		for k, v := range zones.For(db.Driver) {
			there, db = rig.WithParam(there, k, v), rig.WithParam(db, k, v)
		}
		writer := r.Open(there.DSN)
		insert := r.Q("INSERT INTO happened VALUES (?, ?, ?)")
		if _, err := writer.Exec(insert, 1, instant, instant); err != nil {
			t.Fatal(err)
		}
		free := blockInsert(r)
		_, err = writer.Exec(insert, 2, instant, instant)
		free()
		rig.WantPending(t, err)
		if report := r.DeliverTo(t, r.WantOneLog().DataSource, db.DSN); report.Delivered != 1 {
			t.Fatalf("the job: %s", report)
		}
		if n := r.Count("SELECT count(*) FROM happened a JOIN happened b ON a.id = 1 AND b.id = 2 AND a.wall = b.wall AND a.instant = b.instant"); n != 1 {
			var a, b string
			_ = r.Bare.QueryRow("SELECT CAST(wall AS CHAR(40)) FROM happened WHERE id = 1").Scan(&a)
			_ = r.Bare.QueryRow("SELECT CAST(wall AS CHAR(40)) FROM happened WHERE id = 2").Scan(&b)
			t.Errorf("the writer stored %s, the job %s", a, b)
		}
	})
}

// blockInsert keeps everybody from inserting the row 2 until free is called.
func blockInsert(r *rig.Rig) (free func()) {
	r.T.Helper()
	if r.DB.Driver == testdb.DriverSQLite {
		return r.BlockRow(1)
	}
	tx, err := r.Bare.Begin()
	if err != nil {
		r.T.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO happened (id) VALUES (2)"); err != nil {
		r.T.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

func TestSettingsAreLoggedWithoutPassword(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	r := rig.New(t, db, rig.NoSyncRetry)
	r.Account(100)
	db = rig.WithParam(rig.WithParam(rig.Impatient(db), "loc", "Asia/Tokyo"), "time_zone", "'+09:00'")
	free := r.BlockRow(1)
	_, err := r.Open(db.DSN).Exec("UPDATE account SET balance = 1 WHERE id = 1")
	free()
	rig.WantPending(t, err)
	if u := r.WantOneLog(); u.Settings != "loc=Asia/Tokyo;time_zone='+09:00'" {
		t.Errorf("the log's settings are %q", u.Settings)
	}
}
