package rig

import (
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Poolers are PgBouncer's ways with prepared statements, as far as the installed
// one has them.
func Poolers(t *testing.T) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs PgBouncer and a postgres server")
	}
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer"
	}
	out, err := exec.Command(path, "--version").Output()
	var major, minor int
	if _, serr := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	if major == 1 && minor < 21 {
		return map[string][]string{"plain": nil}
	}
	return map[string][]string{"plain": {"max_prepared_statements=0"}, "preparing": {"max_prepared_statements=50"}}
}

// WithDefaults returns a database on its own server with these defaults for new sessions, and an
// account subject to init_connect.
func WithDefaults(t *testing.T, args ...string) testdb.DB {
	t.Helper()
	server := testdb.PrivateMariaDB(t, args...)
	db := server.DB(t)
	admin := db.Open(t)
	for _, text := range []string{"CREATE USER app@'127.0.0.1'", "GRANT ALL ON *.* TO app@'127.0.0.1'", "REVOKE SUPER, CONNECTION ADMIN ON *.* FROM app@'127.0.0.1'"} {
		if _, err := admin.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User = "app"
	db.DSN = cfg.FormatDSN()
	return db
}

// AccountOf makes a PostgreSQL account, and returns the database as seen by it.
func (r *Rig) AccountOf(t *testing.T, name string, also ...string) testdb.DB {
	t.Helper()
	name = name + "_" + r.DB.Name
	r.Exec("CREATE ROLE "+name+" LOGIN PASSWORD 'secret'", "GRANT ALL ON SCHEMA public TO "+name, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+name)
	for _, statement := range also {
		r.Exec(strings.ReplaceAll(statement, "$", name))
	}
	t.Cleanup(func() { r.Exec("DROP OWNED BY "+name+" CASCADE", "DROP ROLE "+name) })
	db := r.DB
	at, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(name, "secret")
	db.DSN = at.String()
	return db
}

// LockAll keeps everybody from writing to the table at the beginning of from.
func (r *Rig) LockAll(from string) (free func()) {
	r.T.Helper()
	table, _, _ := strings.Cut(from, " WHERE")
	conn, err := r.Bare.Conn(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	begin, end := []string{"BEGIN", "LOCK TABLE " + table}, "ROLLBACK"
	if r.DB.Driver == testdb.DriverMySQL {
		begin, end = []string{"LOCK TABLES " + table + " WRITE"}, "UNLOCK TABLES"
	}
	for _, statement := range begin {
		if _, err := conn.ExecContext(r.T.Context(), statement); err != nil {
			r.T.Fatal(err)
		}
	}
	return func() {
		_, _ = conn.ExecContext(r.T.Context(), end)
		_ = conn.Close()
	}
}

func Collecting(hook **logtest.Hook) func(*bedsql.Config) {
	return func(c *bedsql.Config) {
		logger, h := logtest.NewNullLogger()
		*hook = h
		c.Logger = logger
	}
}

func Warnings(hook *logtest.Hook) (out []string) {
	for _, e := range hook.AllEntries() {
		if e.Level <= logrus.WarnLevel {
			out = append(out, e.Message)
		}
	}
	return out
}
