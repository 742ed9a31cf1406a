package txlog_test

import (
	"context"
	"database/sql/driver"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// faults is how often the system had to give this process a page of memory.
func faults(t *testing.T) int64 {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return int64(used.Minflt) //nolint:unconvert // it has 32 bits on some
}

// However much of SQLite's memory is in use, a buffer for balancing a tree is
// not mapped from the system each time: there is room for it beside something
// that stays. Not parallel: the faults are those of the whole process.
func TestSQLiteDoesNotMapItsBuffersAnewForEachWrite(t *testing.T) {
	s := open(t, testdb.SQLite(t))
	write := func() {
		units := make([]*txlog.Unit, 50)
		for i := range units {
			units[i] = unit("UPDATE t SET n = 1")
		}
		mustAdd(t, s, units...)
		if err := s.Remove(t.Context(), units...); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		write()
	}
	// Other users of SQLite in the process take the room, a buffer at a time.
	conn, err := testdb.SQLite(t).Open(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := "SELECT 1 --" + strings.Repeat(" ", 6<<10)
	const rounds = 7 // seven buffers share what is mapped
	for taken := range rounds {
		err := conn.Raw(func(c any) error {
			stmt, err := c.(driver.ConnPrepareContext).PrepareContext(context.Background(), text)
			if err == nil {
				t.Cleanup(func() { _ = stmt.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 16 {
			write() // room is made within them
		}
		// What else the process does makes a measurement worse, never better.
		least, tries := int64(math.MaxInt64), 0
		for ; least > 1 && tries < 100; tries++ {
			before := faults(t)
			write()
			least = min(least, faults(t)-before)
		}
		if least > 1 {
			t.Errorf("with %d more buffers in use, each of %d writes of 50 logs had at least %d pages mapped", taken+1, tries, least)
		}
	}
}
