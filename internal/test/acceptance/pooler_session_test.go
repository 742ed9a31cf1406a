package acceptance

import (
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A pooler applies the DSN's settings to the server's session as changes: RESET drops them, and the
// pooler restores them.
func TestPoolerSessionWithoutDSNSettingsLogsNothing(t *testing.T) {
	t.Parallel()
	poolers(t)
	for _, mode := range []string{"transaction", "session"} {
		for name, moves := range map[string][]string{
			"reset by the pool": {"SET lock_timeout = 1234"},
			"RESET":             {"SET timezone = 'Europe/Berlin'", "RESET timezone"},
			"DEFAULT":           {"SET timezone TO DEFAULT"},
		} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				direct := testdb.Postgres(t)
				db := withParam(testdb.PgBouncer(t, direct, "pool_mode="+mode, "default_pool_size=1"), "timezone", "Asia/Tokyo")
				adds := 0
				r := newRigWithLog(t, db, testdb.SQLite(t), func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
				r.bare = direct.Open(t)
				r.exec("CREATE TABLE told (id INT PRIMARY KEY, at TIMESTAMPTZ)")
				on := executor(r.wrapped)
				if name != "reset by the pool" {
					on = r.conn()
				}
				r.wrapped.SetMaxOpenConns(1)
				for _, text := range moves {
					r.must(on, text)
				}
				r.must(on, "INSERT INTO told VALUES (1, '2026-01-01 09:00')")
				if n := r.count("SELECT COUNT(*) FROM told WHERE at = '2026-01-01 00:00Z'"); adds > 0 && n != 1 {
					t.Error("a write was logged as one of the DSN's time zone, and ran in another one")
				}
			})
		}
	}
}
