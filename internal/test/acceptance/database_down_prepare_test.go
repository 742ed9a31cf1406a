package acceptance

import (
	"context"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/testdb"
)

// A full or recovering server is reachable and answers, and yet the write may succeed later.
func TestWritePreparedWithoutServerIsLogged(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(1)
		limited, lift := r.oneConnection()
		pool := r.open(limited.DSN)
		only, err := limited.Open(t).Conn(context.Background())
		if err == nil {
			err = only.PingContext(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = pool.Prepare("SELECT balance FROM account")
		if !holdsDriversOwn(db, err) {
			t.Errorf("a query's Prepare: %v, want the driver's own error", err)
		}
		st, err := pool.Prepare(r.q(setBalance))
		if err != nil {
			t.Fatalf("a write's Prepare: %v, want Exec to meet it", err)
		}
		defer func() { _ = st.Close() }()
		_, err = st.Exec(2, 1)
		r.wantOutcome(pending, err)
		r.wantBalances(1)
		_ = only.Close()
		lift()
		// The place of another account's session is unknown.
		if report := r.deliverTo(t, r.logs()[0].DataSource, limited.DSN); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(2)
		r.wantNoLog()
	})
}

// oneConnection is the target for an account limited to one connection at a time, until lift.
func (r *rig) oneConnection() (limited testdb.DB, lift func()) {
	r.t.Helper()
	db := r.readOnly()
	if db.Driver == testdb.DriverPostgres {
		role := "reader_" + db.Name
		r.exec("ALTER ROLE "+role+" CONNECTION LIMIT 1", "GRANT ALL ON account TO "+role)
		return db, func() { r.exec("ALTER ROLE " + role + " CONNECTION LIMIT -1") }
	}
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec("GRANT ALL ON "+cfg.DBName+".* TO "+cfg.User, "ALTER USER "+cfg.User+" WITH MAX_USER_CONNECTIONS 1")
	return db, func() { r.exec("ALTER USER " + cfg.User + " WITH MAX_USER_CONNECTIONS 0") }
}
