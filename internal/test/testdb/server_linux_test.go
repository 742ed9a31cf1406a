package testdb

import (
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"
)

var privates = map[string]func(testing.TB, ...string) *Server{"mysql": PrivateMariaDB, "postgres": PrivatePostgres}

func TestKilledPrivateServerKeepsCommittedData(t *testing.T) {
	t.Parallel()
	for driver, start := range privates {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			db := server.DB(t)
			pool := db.Open(t)
			mustExec(t, pool, "CREATE TABLE orders (id INT PRIMARY KEY)")
			mustExec(t, pool, "INSERT INTO orders VALUES (1)")
			tx, err := pool.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.Exec("INSERT INTO orders VALUES (2)"); err != nil {
				t.Fatal(err)
			}

			children := descendants(server.inst.proc.cmd.Process.Pid)
			server.Kill()

			for _, pid := range children {
				if alive(pid) {
					t.Errorf("process %d of the killed server is still running", pid)
				}
			}
			if err := tx.Commit(); err == nil {
				t.Error("COMMIT on a killed server succeeded")
			}
			if err := pool.Ping(); err == nil {
				t.Error("a killed server answers")
			}
			addr := server.Addr()
			server.Start()
			if server.Addr() != addr {
				t.Errorf("restarted at %s, was at %s", server.Addr(), addr)
			}
			if n := count(t, pool, "orders"); n != 1 {
				t.Errorf("%d rows after the crash, want the committed one", n)
			}

			server.Stop()
			if err := pool.Ping(); err == nil {
				t.Error("a stopped server answers")
			}
			server.Start()
			if n := count(t, pool, "orders"); n != 1 {
				t.Errorf("%d rows after an orderly restart, want 1", n)
			}
		})
	}
}

func TestAPausedServerHoldsItsAnswersBack(t *testing.T) {
	t.Parallel()
	for driver, start := range privates {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			pool := server.DB(t).Open(t)
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()

			server.Pause()
			answered := make(chan error, 1)
			go func() {
				var one int
				answered <- conn.QueryRowContext(t.Context(), "SELECT 1").Scan(&one)
			}()
			select {
			case err := <-answered:
				t.Errorf("a paused server answered (error %v)", err)
			case <-time.After(200 * time.Millisecond):
			}
			server.Resume()
			if err := <-answered; err != nil {
				t.Errorf("after Resume: %v", err)
			}
		})
	}
}

func TestAPrivateServerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for driver, start := range privates {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			var server *Server
			var pids []int
			var dsn DB
			t.Run("test", func(t *testing.T) {
				server = start(t)
				dsn = server.DB(t)
				pid := server.inst.proc.cmd.Process.Pid
				pids = append(descendants(pid), pid)
			})
			if server == nil {
				t.Skip("-short: no private server was started")
			}
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("process %d is still running", pid)
				}
			}
			if _, err := os.Stat(server.inst.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory is still there: %v", err)
			}
			pool, err := sql.Open(dsn.SQLDriver(), dsn.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = pool.Close() }()
			if pool.Ping() == nil {
				t.Error("it still answers")
			}
		})
	}
}

func TestPrivateServerOptionsOverrideDefaults(t *testing.T) {
	t.Parallel()
	for driver, c := range map[string]struct{ option, query string }{
		"mysql":    {"--max-connections=17", "SELECT @@max_connections"},
		"postgres": {"max_connections=17", "SELECT current_setting('max_connections')::int"},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			pool := privates[driver](t, c.option).DB(t).Open(t)
			var got int
			if err := pool.QueryRow(c.query).Scan(&got); err != nil || got != 17 {
				t.Errorf("max_connections = %d (error %v), want 17", got, err)
			}
		})
	}
}

func TestAFullServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	for driver, c := range map[string]struct {
		option string
		room   int
	}{"mysql": {"--max-connections=10", 10 + 1}, "postgres": {"max_connections=10", 10}} { // MariaDB takes one more of root's
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := privates[driver](t, c.option)
			pool := server.DB(t).Open(t)
			pool.SetMaxOpenConns(0)
			pool.SetMaxIdleConns(-1)
			var release func() error
			for held, end := 0, time.Now().Add(time.Minute); held < c.room; {
				conn, err := pool.Conn(t.Context())
				if err != nil { // a closed session takes room for a moment
					if time.Now().After(end) {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
					continue
				}
				held++
				release = conn.Close
				defer func() { _ = conn.Close() }()
			}
			created := make(chan error, 1)
			go func() {
				_, err := server.inst.admin().create()
				created <- err
			}()

			select {
			case err := <-created:
				t.Fatalf("a database on a full server: %v", err)
			case <-time.After(200 * time.Millisecond): // several attempts
			}
			if err := release(); err != nil {
				t.Fatal(err)
			}
			if err := <-created; err != nil {
				t.Error(err)
			}
		})
	}
}
