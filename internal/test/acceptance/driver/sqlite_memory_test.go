package driver

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A shared in-memory database disappears with its last connection, possibly its only one.
func TestSharedInMemoryDatabaseOutlivesItsSessionState(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"file::memory:?cache=shared",
		"file:kept?mode=memory&cache=shared",
		"file:/kept?vfs=memdb",
	} {
		for _, state := range []string{
			"PRAGMA foreign_keys = ON",
			"PRAGMA defer_foreign_keys = ON",
			"CREATE TEMPORARY TABLE mine (id INT)",
			"ATTACH ':memory:' AS aside",
		} {
			t.Run(dsn+" "+state, func(t *testing.T) {
				r := rig.New(t, testdb.SQLite(t))
				pool := r.Open(dsn)
				pool.SetMaxOpenConns(1)
				r.Must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
				r.Must(pool, state)
				r.Must(pool, "INSERT INTO account VALUES (1, 1)")
				var n int
				if err := pool.QueryRow("SELECT COUNT(*) FROM account").Scan(&n); err != nil || n != 1 {
					t.Errorf("%d rows, %v: the database was given up", n, err)
				}
			})
		}
	}
}
