package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
)

// Server is a private database server: installed binaries with data of their
// own on a free port of 127.0.0.1, durable as a production server is, so that
// what was committed survives [Server.Kill]. It ends with the test, or with
// the test's process if that is killed.
//
// Its methods belong to the goroutine of the test, as t.Fatal does: a server
// that does not obey ends the test.
type Server struct {
	t    testing.TB
	inst *instance
}

// PrivateMariaDB starts a MariaDB of its own for a test. extraArgs are options
// of mariadbd that come after and win over the default ones. With -short the
// test is skipped; without the binaries it fails and says what to install.
func PrivateMariaDB(t testing.TB, extraArgs ...string) *Server {
	t.Helper()
	return private(t, recipes[DriverMySQL], extraArgs)
}

// PrivatePostgres starts a PostgreSQL of its own for a test. extra are
// settings in the form name=value that win over the default ones. With -short
// the test is skipped; without the binaries it fails and says what to install.
func PrivatePostgres(t testing.TB, extra ...string) *Server {
	t.Helper()
	return private(t, recipes[DriverPostgres], extra)
}

// private starts a server that ends with the test.
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

// Kill ends the server and its children with SIGKILL, as a crash would, and
// returns when all of them are dead. A server that is not running stays so.
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

// Standalone starts a server of a driver ("mysql" or "postgres") outside of a test.
// stop ends it and removes its data. For a whole test run it does without fsync and has
// room for more connections than the private ones; a durable one, for measurements, has
// each commit on the disk before it answers, and caches and a redo log of the sizes that
// servers have by default.
func Standalone(driver string, durable bool) (dsn string, stop func() error, err error) {
	settings := map[bool]map[string][]string{
		false: {
			DriverMySQL:    {"--innodb-flush-log-at-trx-commit=0", "--max-connections=500", "--innodb-buffer-pool-size=256M"},
			DriverPostgres: {"fsync=off", "max_connections=400", "shared_buffers=128MB"},
		},
		true: {
			DriverMySQL:    {"--max-connections=1000", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"},
			DriverPostgres: {"max_connections=800", "shared_buffers=128MB"},
		},
	}[durable]
	r, ok := recipes[driver]
	if !ok {
		return "", nil, fmt.Errorf("no server %q; there are mysql and postgres", driver)
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
