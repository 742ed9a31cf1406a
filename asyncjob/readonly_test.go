package asyncjob

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// A server that answers pings but takes no writes is down. No entry is parked, no try is counted,
// and everything is delivered once it takes writes again. The probe reports it; a delivery does if
// the server turned read-only after the probe.
func TestReadOnlyServerIsAnOutage(t *testing.T) {
	t.Parallel()
	type server struct {
		db          testdb.DB
		only, again string
	}
	for name, private := range map[string]func(t *testing.T) server{
		"mysql": func(t *testing.T) server {
			db := testdb.PrivateMariaDB(t).DB(t)
			pool := db.Open(t)
			mustExec(t, pool, "CREATE USER plain@'%' IDENTIFIED BY 'x'")
			mustExec(t, pool, "GRANT ALL ON "+db.Name+".* TO plain@'%'")
			return server{db, "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"}
		},
		"postgres": func(t *testing.T) server {
			db := testdb.PrivatePostgres(t).DB(t)
			set := "ALTER DATABASE " + db.Name + " SET default_transaction_read_only = "
			return server{db, set + "on", "SET default_transaction_read_only = off; " + set + "off"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := private(t)
			pool := table(t, s.db)
			target, store := realTarget(t, s.db), newStore(t)
			if name == "mysql" {
				var err error
				if target, err = mysql.Target(strings.Replace(s.db.DSN, "root@", "plain:x@", 1)); err != nil {
					t.Fatal(err)
				}
			}
			const units = 200
			for n := range units {
				addFor(t, store, target, false, fmt.Sprintf("INSERT INTO account VALUES (%d, 'x')", 10+n))
			}
			cfg := brittle()
			cfg.MaxDeliveryTryTimes, cfg.RetryDelay = 1, NoDelay
			untouched := func(when string) {
				t.Helper()
				all := mustList(t, store)
				for _, u := range all {
					if u.Parked || u.Tries != 0 || u.InDoubt || u.Leased {
						t.Fatalf("%s: a unit is %+v", when, u)
					}
				}
				if len(all) != units {
					t.Fatalf("%s: %d units are left", when, len(all))
				}
			}
			job := newJob(t, store, Targets{"orders": target}, cfg)
			mustExec(t, pool, s.only)
			for range 2 {
				if r := runOnce(t, job); r.Claimed != 0 || r.DataSources["orders"].Unreachable == nil {
					t.Errorf("the probe let through: %v", r)
				}
			}
			untouched("after the probe")
			// The same without a probe.
			blind := target
			dialect := *target.Dialect
			dialect.Writable = nil
			blind.Dialect = &dialect
			if r := runOnce(t, newJob(t, store, Targets{"orders": blind}, cfg)); r.PushedBack != r.Claimed || r.Claimed > 2*firstClaim || r.DataSources["orders"].Unreachable == nil {
				t.Errorf("the deliveries: %v", r)
			}
			untouched("after the deliveries")
			mustExec(t, pool, s.again)
			for _, u := range mustList(t, store) {
				must(t, store.Retry(t.Context(), u.ID)) // those that met it rest for a second
			}
			if r := runOnce(t, job); r.Delivered != units || left(t, store) != 0 {
				t.Errorf("once it takes writes: %v", r)
			}
			if n := rows(t, pool, "id >= 10"); n != units {
				t.Errorf("%d rows are there", n)
			}
		})
	}
}

func mustList(t *testing.T, s txlog.Storage) []*entry.Unit {
	t.Helper()
	all, err := s.List(t.Context(), txlog.Filter{Limit: 1000})
	must(t, err)
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
