package dialecttest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Server is how sessions of a server are observed and stopped.
type Server struct {
	// ID asks a session for its number, Sleep makes it wait for a minute, and
	// Asleep asks another whether %d sleeps.
	ID, Sleep, Asleep string
	// Waits reports whether a session waits for a lock.
	Waits func(t *testing.T, db *sql.DB, id int64) bool
	// LockTimeout and StatementTimeout bound later statements; NoTimeout undoes them.
	LockTimeout, StatementTimeout, NoTimeout string
	// Cancel stops the statement of session %d, Kill the session.
	Cancel, Kill string
	ReadOnly     string
}

// AwaitLock returns when a session waits for a lock.
func (s *Server) AwaitLock(t *testing.T, db *sql.DB, id int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !s.Waits(t, db, id); {
		if time.Now().After(deadline) {
			t.Fatal("the session never waited")
		}
	}
}

// SessionID is the number of c's session.
func (s *Server) SessionID(t *testing.T, c *sql.Conn) (id int64) {
	t.Helper()
	if err := c.QueryRowContext(context.Background(), s.ID).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// A write stopped by a lock, a timeout or an operator may succeed later. A write in a killed
// session may have been applied.
func (k *Kit) later(t *testing.T) {
	t.Parallel()
	s := k.Server
	db := k.DB(t).Open(t)
	Must(t, db, k.Schema...)
	holder, waiter := Conn(t, db), Conn(t, db)
	Must(t, holder, "BEGIN", "UPDATE t SET n = 5 WHERE id = 1")
	write := func() error {
		_, err := waiter.ExecContext(context.Background(), "UPDATE t SET n = 6 WHERE id = 1")
		return err
	}
	for _, timeout := range []string{s.LockTimeout, s.StatementTimeout} {
		if _, err := waiter.ExecContext(t.Context(), timeout); dberr.Of(err).Number == 1193 { // MySQL: an unknown variable
			t.Run("no timeout", func(t *testing.T) { t.Skipf("%s: %v", timeout, err) })
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		want := dialect.Retryable
		if strings.Contains(timeout, "lock") { // another transaction was in the way; a slow statement may be so by itself
			want = dialect.Contention
		}
		k.classIs(t, timeout, write(), want)
		Must(t, waiter, s.NoTimeout)
	}
	Must(t, waiter, s.ReadOnly)
	k.classIs(t, "read-only transaction", write(), dialect.Retryable)
	Must(t, waiter, "ROLLBACK")

	for stop, want := range map[string]dialect.Class{s.Cancel: dialect.Retryable, s.Kill: dialect.Unknown} {
		waiter = Conn(t, db)
		id := s.SessionID(t, waiter)
		done := make(chan error, 1)
		go func() { done <- write() }()
		s.AwaitLock(t, db, id)
		Must(t, db, fmt.Sprintf(stop, id))
		k.classIs(t, stop, <-done, want)
	}
}

func (k *Kit) contextEnded(t *testing.T) {
	t.Parallel()
	db := k.DB(t).Open(t)
	ctx, cancel := context.WithCancel(context.Background())
	c := Conn(t, db)
	id := k.Server.SessionID(t, c)
	done := make(chan error, 1)
	go func() {
		_, err := c.ExecContext(ctx, k.Server.Sleep)
		done <- err
	}()
	for asleep := false; !asleep; {
		if err := db.QueryRow(fmt.Sprintf(k.Server.Asleep, id)).Scan(&asleep); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	k.classIs(t, "the context ended", <-done, dialect.Unknown)
	_, _ = db.Exec(fmt.Sprintf(k.Server.Kill, id))
}

// Must runs statements that succeed.
func Must(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.ExecContext(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// Conn is a connection of db until the test's end.
func Conn(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Open opens a DSN by the bare driver of a kind of database.
func Open(t *testing.T, name, dsn string) *sql.DB {
	t.Helper()
	return testdb.DB{Driver: name, DSN: dsn}.Open(t)
}

// Raw runs f on the driver's connection.
func Raw(t *testing.T, c *sql.Conn, f func(driver.Conn) error) (err error) {
	t.Helper()
	if e := c.Raw(func(dc any) error {
		err = f(dc.(driver.Conn))
		return nil
	}); e != nil {
		t.Fatal(e)
	}
	return err
}
