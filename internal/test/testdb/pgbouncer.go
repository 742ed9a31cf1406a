package testdb

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// PgBouncer starts a PgBouncer in transaction mode in front of the server of db, with at most five
// connections to it, and returns db as reached through it. It ends with the test. settings have the
// form name=value and override the default ones. With -short the test is skipped; without the
// binary it fails with installation advice.
func PgBouncer(t testing.TB, db DB, settings ...string) DB {
	t.Helper()
	host, port, err := net.SplitHostPort(db.Addr())
	if err != nil {
		t.Fatalf("testdb: PgBouncer goes before a server that listens on TCP: %v", err)
	}
	return db.Via(private(t, pgBouncer(host, port), settings).Addr())
}

// pgBouncer is the recipe of one in front of the server at an address.
func pgBouncer(host, port string) recipe {
	return recipe{
		kind:       "pgbouncer",
		driver:     DriverPostgres,
		account:    "postgres",
		initialise: func(string) (*exec.Cmd, error) { return exec.Command("true"), nil },
		serve: func(dir string, listen int, extra []string) (*exec.Cmd, error) {
			path := filepath.Join(dir, "pgbouncer.ini")
			cmd, err := command("pgbouncer", "pgbouncer", path)
			if err != nil {
				return cmd, err
			}
			settings := append([]string{
				"[databases]", fmt.Sprintf("* = host=%s port=%s user=postgres", host, port), "[pgbouncer]",
				"listen_addr=127.0.0.1", fmt.Sprintf("listen_port=%d", listen), "unix_socket_dir=", "auth_type=any",
				"pool_mode=transaction", "default_pool_size=5", "max_client_conn=200", "ignore_startup_parameters=extra_float_digits",
				"log_connections=0", "log_disconnections=0", "log_stats=0",
			}, extra...)
			//nolint:gosec // it is read by the account that the pooler runs as
			return cmd, os.WriteFile(path, []byte(strings.Join(settings, "\n")+"\n"), 0o644)
		},
		dsn: func(port int) string {
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&default_query_exec_mode=exec", port)
		},
		stopSignal:   syscall.SIGTERM,
		orphanSignal: syscall.SIGKILL,
	}
}
