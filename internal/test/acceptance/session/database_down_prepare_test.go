package session

import (
	"context"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A full or recovering server is reachable and answers, and yet the write may succeed later.
func TestWritePreparedWithoutServerIsLogged(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(1)
		limited, lift := oneConnection(r)
		pool := r.Open(limited.DSN)
		only, err := limited.Open(t).Conn(context.Background())
		if err == nil {
			err = only.PingContext(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = pool.Prepare("SELECT balance FROM account")
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("a query's Prepare: %v, want the driver's own error", err)
		}
		st, err := pool.Prepare(r.Q(rig.SetBalance))
		if err != nil {
			t.Fatalf("a write's Prepare: %v, want Exec to meet it", err)
		}
		defer func() { _ = st.Close() }()
		_, err = st.Exec(2, 1)
		r.WantOutcome(rig.Pending, err)
		r.WantBalances(1)
		_ = only.Close()
		lift()
		// The place of another account's session is unknown.
		if report := r.DeliverTo(t, r.Logs()[0].DataSource, limited.DSN); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(2)
		r.WantNoLog()
	})
}

// oneConnection is the target for an account limited to one connection at a time, until lift.
func oneConnection(r *rig.Rig) (limited testdb.DB, lift func()) {
	r.T.Helper()
	db := r.ReadOnly()
	if db.Driver == testdb.DriverPostgres {
		role := "reader_" + db.Name
		r.Exec("ALTER ROLE "+role+" CONNECTION LIMIT 1", "GRANT ALL ON account TO "+role)
		return db, func() { r.Exec("ALTER ROLE " + role + " CONNECTION LIMIT -1") }
	}
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		r.T.Fatal(err)
	}
	r.Exec("GRANT ALL ON "+cfg.DBName+".* TO "+cfg.User, "ALTER USER "+cfg.User+" WITH MAX_USER_CONNECTIONS 1")
	return db, func() { r.Exec("ALTER USER " + cfg.User + " WITH MAX_USER_CONNECTIONS 0") }
}
