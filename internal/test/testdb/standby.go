package testdb

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
)

// Standby starts a PostgreSQL that follows s, and makes s wait for it before answering a COMMIT. It
// ends with the test.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	r := s.inst.recipe
	r.kind = "standby"
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r.initialise = func(dir string) (*exec.Cmd, error) {
		return command("pg_basebackup", "postgresql", "--host=127.0.0.1", "--port="+port, "--username=postgres", "--no-password",
			"--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata="+filepath.Join(dir, "data"))
	}
	standby := private(t, r, s.inst.extra)
	s.Exec("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	return standby
}

// Promote makes a standby the primary.
func (s *Server) Promote() {
	s.t.Helper()
	// A primary would still wait for a lost standby of its own.
	s.Exec("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()", "SELECT pg_promote()")
}

// OnEither gives a database as it is found at whichever of two addresses, a server's and
// its standby's, takes writes, by one DSN with both hosts.
func OnEither(db DB, first, second string) DB {
	_, one, _ := net.SplitHostPort(first)
	_, two, _ := net.SplitHostPort(second)
	db.DSN = fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%s,%s user=postgres dbname=%s sslmode=disable connect_timeout=2 target_session_attrs=read-write", one, two, db.Name)
	return db
}
