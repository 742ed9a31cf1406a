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

const kindPgBouncer = "pgbouncer"

// PgBouncer starts a PgBouncer in transaction mode in front of the server of db,
// with at most five connections to it, and gives db as reached through it. It ends with
// the test. settings are in the form name=value and win over the default ones.
// With -short the test is skipped; without the binary it fails and says what to
// install.
func PgBouncer(t testing.TB, db DB, settings ...string) DB {
	t.Helper()
	host, port, err := net.SplitHostPort(db.Addr())
	if err != nil {
		t.Fatalf("testdb: PgBouncer goes before a server that listens on TCP: %v", err)
	}
	server := private(t, kindPgBouncer, append([]string{"server_host=" + host, "server_port=" + port}, settings...))
	return db.Via(server.Addr())
}

// PgBouncerPrepares says whether the installed PgBouncer follows its clients'
// prepared statements if it is told to (max_prepared_statements, from 1.21 on).
func PgBouncerPrepares() (bool, error) {
	bin, err := findBinary("pgbouncer", "apt-get install pgbouncer")
	if err != nil {
		return false, err
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return false, err
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		return false, err
	}
	return major > 1 || minor >= 21, nil
}

func pgBouncerRecipe() recipe {
	return recipe{
		driver:     DriverPostgres,
		accounts:   []string{"postgres", "nobody"},
		initialise: func(string) (*exec.Cmd, error) { return findCommand("true") },
		serve:      servePgBouncer,
		dsn: func(port int) string {
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&default_query_exec_mode=exec", port)
		},
		stopSignal:   syscall.SIGTERM,
		orphanSignal: syscall.SIGKILL,
	}
}

func findCommand(name string) (*exec.Cmd, error) {
	bin, err := exec.LookPath(name)
	return exec.Command(bin), err
}

func servePgBouncer(dir string, port int, extra []string) (*exec.Cmd, error) {
	bin, err := findBinary("pgbouncer", "apt-get install pgbouncer")
	if err != nil || dir == "" {
		return exec.Command(bin), err
	}
	server := map[string]string{}
	settings := []string{
		"listen_addr=127.0.0.1", fmt.Sprintf("listen_port=%d", port), "unix_socket_dir=", "auth_type=any",
		"pool_mode=transaction", "default_pool_size=5", "max_client_conn=200", "ignore_startup_parameters=extra_float_digits",
		"log_connections=0", "log_disconnections=0", "log_stats=0",
	}
	for _, s := range extra {
		name, value, _ := strings.Cut(s, "=")
		if name == "server_host" || name == "server_port" {
			server[name] = value
		} else {
			settings = append(settings, s)
		}
	}
	ini := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\n%s\n",
		server["server_host"], server["server_port"], strings.Join(settings, "\n"))
	path := filepath.Join(dir, "pgbouncer.ini")
	//nolint:gosec // it is read by the account that the pooler runs as
	if err := os.WriteFile(path, []byte(ini), 0o644); err != nil {
		return nil, err
	}
	return exec.Command(bin, path), nil
}
