package exactlyonce

import (
	"net/url"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A job with another table bed_receipt, or without one, cannot see which writes are applied.
func TestJobWithAnotherReceiptPlaceDoesNotDeliver(t *testing.T) {
	t.Parallel()
	t.Run(testdb.DriverMySQL, func(t *testing.T) {
		t.Parallel()
		db := testdb.MySQL(t)
		r := rig.New(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		r.Account(100)
		dsn, here, there := receiptsElsewhere(r, t)
		wantElsewhere(r, t, "UPDATE `"+db.Name+"`.account SET balance = balance + 1 WHERE id = 1", dsn, here, there)
	})
	t.Run(testdb.DriverPostgres, func(t *testing.T) {
		t.Parallel()
		db := testdb.Postgres(t)
		r := rig.New(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		r.Account(100)
		dsn, here, _ := receiptsElsewhere(r, t)
		// In the application's place, for which it has no right, it says so.
		wantElsewhere(r, t, "UPDATE public.account SET balance = balance + 1 WHERE id = 1", dsn, here)
	})
}

// receiptsElsewhere makes a DSN of the target's address under which sessions find
// another table bed_receipt, and names both places.
func receiptsElsewhere(r *rig.Rig, t *testing.T) (dsn, here, there string) {
	t.Helper()
	db := r.DB
	if db.Driver == testdb.DriverMySQL {
		other := testdb.MySQL(t)
		return other.DSN, db.Name, other.Name
	}
	role := "role_" + db.Name
	r.Exec("CREATE ROLE "+role+" LOGIN PASSWORD 'secret'", "CREATE SCHEMA "+role+" AUTHORIZATION "+role, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+role)
	t.Cleanup(func() { r.Exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
	at, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(role, "secret")
	pool := testdb.DB{Driver: db.Driver, Name: db.Name, DSN: at.String()}.Open(t)
	ddl, err := attempt.ReceiptSchema(db.Driver)
	if err != nil {
		t.Fatal(err)
	}
	r.Must(pool, ddl)
	return at.String(), db.Name + ".public", role
}

// wantElsewhere has a write applied whose log stays, and a job with another DSN
// run, and then the rig's own.
func wantElsewhere(r *rig.Rig, t *testing.T, write, dsn string, places ...string) {
	t.Helper()
	r.Must(r.Wrapped, write)
	r.WantNoLog()
	free := r.BlockRow(1)
	_, err := r.Open(rig.Impatient(r.DB).DSN).Exec(write)
	free()
	rig.WantPending(t, err)
	u := r.WantOneLog()
	if u.Place == "" {
		t.Errorf("the log does not say where its receipt is: %+v", u)
	}
	if report := r.DeliverTo(t, u.DataSource, dsn); report.PushedBack == 0 || report.Delivered+report.Failed+report.Parked != 0 {
		t.Errorf("the job: %s, want it pushed back", report)
	}
	u = r.WantOneLog()
	for _, place := range places {
		if !strings.Contains(u.LastError, place) {
			t.Errorf("the error does not name %s: %s", place, u.LastError)
		}
	}
	if u.Tries != 0 || u.Parked {
		t.Errorf("it counts as a try: %+v", u)
	}
	r.WantBalances(101)
	if report := r.DeliverTo(t, u.DataSource, r.DB.DSN); report.Delivered != 1 {
		t.Errorf("a job that sees the same place: %s, %+v", report, r.Logs())
	}
	r.WantBalances(102)
	r.WantNoLog()
}
