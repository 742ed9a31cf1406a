package driver

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Without BEGIN IMMEDIATE two claimers read first and then fail at their writes,
// or share.
func TestClaimersOfOneFileNeverShareOrFail(t *testing.T) {
	t.Parallel()
	const workers, units, batch = 6, 240, 7
	logDB := testdb.SQLite(t)
	open := func() *txlog.SQLStorage {
		s, err := txlog.Open(context.Background(), logDB.Driver, "file:"+logDB.Name) // no busy timeout of its own
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	storage := open()
	for range units {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM t"}}}
		if err := storage.Add(context.Background(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		if err := storage.Release(context.Background(), u, entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
	}
	var (
		mu    sync.Mutex
		owner = map[string]int{}
		wg    sync.WaitGroup
	)
	for worker := range workers {
		s := open()
		wg.Go(func() {
			for {
				got, err := s.Claim(context.Background(), entry.ClaimRequest{DataSource: "a", Limit: batch, Lease: time.Hour})
				if err != nil {
					t.Errorf("worker %d: %v", worker, err)
					return
				}
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, u := range got {
					if other, taken := owner[u.ID]; taken {
						t.Errorf("unit %s was given to %d and to %d", u.ID, other, worker)
					}
					owner[u.ID] = worker
				}
				mu.Unlock()
				if err := s.Remove(context.Background(), got...); err != nil {
					t.Errorf("worker %d: %v", worker, err)
				}
			}
		})
	}
	wg.Wait()
	if len(owner) != units {
		t.Errorf("%d units were claimed, want %d", len(owner), units)
	}
}

func TestLogInTheTargetFileIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "app.db")
	storage, err := txlog.Open(context.Background(), testdb.DriverSQLite, file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	link := func(make func(string, string) error, from, to string) string {
		t.Helper()
		if err := make(from, to); err != nil {
			t.Fatal(err)
		}
		return to
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(wd, file)
	if err != nil {
		t.Fatal(err)
	}
	for name, dsn := range map[string]string{
		"its path":             file,
		"a URI":                "file:" + file + "?_pragma=busy_timeout(5000)",
		"an escaped URI":       "file://" + strings.ReplaceAll(file, "app", "%61pp"),
		"a relative path":      relative,
		"a detour":             filepath.Join(dir, "x", "..") + "/./app.db",
		"a symbolic link":      link(os.Symlink, file, filepath.Join(dir, "link.db")),
		"a hard link":          link(os.Link, file, filepath.Join(dir, "hard.db")),
		"a linked directory":   filepath.Join(link(os.Symlink, dir, filepath.Join(t.TempDir(), "d")), "app.db"),
		"a name of its own":    file + "?bedDataSource=orders",
		"a read-only opening":  "file:" + file + "?mode=ro",
		"a chain of two links": link(os.Symlink, filepath.Join(dir, "link.db"), filepath.Join(dir, "chain.db")),
	} {
		t.Run(name, func(t *testing.T) {
			driverName := "bed-" + t.Name()
			if err := sqlite.Register(driverName, bedsql.Config{Storage: storage, Logger: rig.Quiet()}); err != nil {
				t.Fatal(err)
			}
			refusesWrites(t, driverName, dsn)
		})
	}
}

// refusesWrites wants a pool that opens, for transactions of WithTx, and refuses a write of its own.
func refusesWrites(t *testing.T, driverName, dsn string) {
	t.Helper()
	pool, err := sql.Open(driverName, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	if _, err := pool.Exec("INSERT INTO account VALUES (1, 1)"); err == nil || !strings.Contains(err.Error(), "same SQLite file") || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("a write says %v", err)
	}
}

// The log's file may be gone, or not yet be there, when the target is opened.
func TestLogInAFutureTargetFileIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	aside := filepath.Join(t.TempDir(), "d")
	if err := os.Symlink(dir, aside); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "app.db")
	storage, err := txlog.Open(context.Background(), testdb.DriverSQLite, file)
	if err != nil {
		t.Fatal(err)
	}
	_ = storage.Close()
	for _, f := range []string{file, file + "-wal", file + "-shm"} {
		_ = os.Remove(f)
	}
	for name, dsn := range map[string]string{"its path": file, "a linked directory": filepath.Join(aside, "app.db")} {
		t.Run(name, func(t *testing.T) {
			driverName := "bed-" + t.Name()
			if err := sqlite.Register(driverName, bedsql.Config{Storage: storage, Logger: rig.Quiet()}); err != nil {
				t.Fatal(err)
			}
			refusesWrites(t, driverName, dsn)
		})
	}
}

// A write whose outcome is unknown costs an application in memory neither its
// database nor a write into another, empty one.
func TestADatabaseInMemoryHasNoSideConnection(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{":memory:", "file::memory:", "file:x?mode=memory"} {
		t.Run(dsn, func(t *testing.T) {
			r := rig.New(t, testdb.SQLite(t))
			pool := r.Open(dsn)
			pool.SetMaxOpenConns(1)
			r.Must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
			r.Must(pool, "INSERT INTO account VALUES (1, 1), (2, 2)")
			r.WantNoLog()
			for _, tx := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				if tx {
					local, err := pool.Begin()
					if err != nil {
						t.Fatal(err)
					}
					_, err = local.ExecContext(ctx, rig.Endless)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the write: %v", err)
					}
					_ = local.Rollback()
				} else {
					_, err := pool.ExecContext(ctx, rig.Endless)
					rig.WantPending(t, err)
				}
				cancel()
				var sum int
				if err := pool.QueryRow("SELECT SUM(balance) FROM account").Scan(&sum); err != nil || sum != 3 {
					t.Fatalf("the database holds %d, %v; want 3: it was given up for another, empty one", sum, err)
				}
			}
			r.Must(pool, "UPDATE account SET balance = 10 WHERE id = 1")
			if u := r.WantOneLog(); !u.InDoubt || u.Leased {
				t.Errorf("the log holds %+v, want the interrupted write, in doubt", u)
			}
		})
	}
}
