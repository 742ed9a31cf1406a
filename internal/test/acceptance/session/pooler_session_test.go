package session

import (
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A pooler applies the DSN's settings to the server's session as changes: RESET drops them, and the
// pooler restores them.
func TestPoolerSessionWithoutDSNSettingsLogsNothing(t *testing.T) {
	t.Parallel()
	rig.Poolers(t)
	for _, mode := range []string{"transaction", "session"} {
		for name, moves := range map[string][]string{
			"reset by the pool": {"SET lock_timeout = 1234"},
			"RESET":             {"SET timezone = 'Europe/Berlin'", "RESET timezone"},
			"DEFAULT":           {"SET timezone TO DEFAULT"},
		} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				direct := testdb.Postgres(t)
				db := rig.WithParam(testdb.PgBouncer(t, direct, "pool_mode="+mode, "default_pool_size=1"), "timezone", "Asia/Tokyo")
				adds := 0
				r := rig.NewWithLog(t, db, testdb.SQLite(t), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
				r.Bare = direct.Open(t)
				r.Exec("CREATE TABLE told (id INT PRIMARY KEY, at TIMESTAMPTZ)")
				on := rig.Executor(r.Wrapped)
				if name != "reset by the pool" {
					on = r.Conn()
				}
				r.Wrapped.SetMaxOpenConns(1)
				for _, text := range moves {
					r.Must(on, text)
				}
				r.Must(on, "INSERT INTO told VALUES (1, '2026-01-01 09:00')")
				if n := r.Count("SELECT COUNT(*) FROM told WHERE at = '2026-01-01 00:00Z'"); adds > 0 && n != 1 {
					t.Error("a write was logged as one of the DSN's time zone, and ran in another one")
				}
			})
		}
	}
}
