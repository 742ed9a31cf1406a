package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
)

// Server is a private database server: installed binaries with their own data on a free port of
// 127.0.0.1. It is as durable as a production server, so that commits survive [Server.Kill]. It
// ends with the test, or with the test's process if that is killed.
//
// Call its methods on the test's goroutine, like t.Fatal: a server that does not obey ends the
// test.
type Server struct {
	t    testing.TB
	inst *instance
}

// PrivateMariaDB starts a private MariaDB for a test. extraArgs are options of mariadbd that
// override the default ones. With -short the test is skipped; without the binaries it fails with
// installation advice.
func PrivateMariaDB(t testing.TB, extraArgs ...string) *Server {
	t.Helper()
	return private(t, recipes[DriverMySQL], extraArgs)
}

// PrivatePostgres starts a private PostgreSQL for a test. extra are settings in the form name=value
// that override the default ones. With -short the test is skipped; without the binaries it fails
// with installation advice.
func PrivatePostgres(t testing.TB, extra ...string) *Server {
	t.Helper()
	return private(t, recipes[DriverPostgres], extra)
}

// private starts a server until the end of the test.
func private(t testing.TB, r recipe, extra []string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: starts a private %s server", r.kind)
	}
	inst, err := newInstance(r, extra)
	if err != nil {
		t.Fatalf("testdb: private %s server: %v", r.kind, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the private %s server's log:\n%s", r.kind, inst.logTail())
		}
		if err := inst.close(); err != nil {
			t.Errorf("testdb: private %s server: %v", r.kind, err)
		}
	})
	return &Server{t: t, inst: inst}
}

// DB creates a database on the server. It goes when the server goes.
func (s *Server) DB(t testing.TB) DB {
	t.Helper()
	db, err := s.inst.admin().create()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return db
}

// Addr is the server's "127.0.0.1:port", the same through its whole life.
func (s *Server) Addr() string { return s.inst.addr() }

// Kill ends the server and its children with SIGKILL, as a crash would, and returns after the death
// of all. A stopped server stays stopped.
func (s *Server) Kill() { s.must("kill", s.inst.kill()) }

// Stop shuts the server down in an orderly way: sessions are ended, open
// transactions rolled back. It returns when the server has exited.
func (s *Server) Stop() { s.must("stop", s.inst.stop()) }

// Start starts a killed or stopped server again on the same port and data, and
// returns when it answers. A running server stays as it is.
func (s *Server) Start() { s.must("start", s.inst.start()) }

// Pause stops the server and its children from running (SIGSTOP): connections
// stay open and nothing is answered. It must be running.
func (s *Server) Pause() { s.must("pause", s.inst.proc.pause()) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.must("resume", s.inst.proc.resume()) }

// Exec runs statements on the server as its administrator.
func (s *Server) Exec(statements ...string) {
	s.t.Helper()
	s.must("run statements on", s.inst.admin().do(context.Background(), func(pool *sql.DB) error {
		for _, text := range statements {
			if _, err := pool.Exec(text); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	}))
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("testdb: %s private %s server: %v", what, s.inst.recipe.kind, err)
	}
}

// Standalone starts a server of a driver ("mysql" or "postgres") outside of a test, in the directory
// for temporary files. stop ends it and removes its data. It takes more connections than the private
// ones, and has caches and a redo log of the default sizes.
func Standalone(driver string) (dsn string, stop func() error, err error) {
	settings := map[string][]string{
		DriverMySQL:    {"--max-connections=1000", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"},
		DriverPostgres: {"max_connections=800", "shared_buffers=128MB"},
		oldMySQL:       {"--max-connections=1000", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M", "--max-allowed-packet=16M"},
	}
	r, ok := recipes[driver]
	if !ok {
		return "", nil, fmt.Errorf("no server %q; there are mysql, postgres and %s", driver, oldMySQL)
	}
	inst, err := newInstance(r, settings[driver])
	if err != nil {
		return "", nil, err
	}
	return inst.admin().dsn, inst.close, nil
}

// RestartWith stops the server and starts it with further options, until it is
// started again.
func (s *Server) RestartWith(options ...string) {
	s.t.Helper()
	s.Stop()
	before := s.inst.extra
	s.inst.extra = slices.Concat(before, options)
	s.Start()
	s.inst.extra = before
}
