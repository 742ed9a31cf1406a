package journal_test

import (
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Somebody holds the table of attempts: a unit is given up all the same, and soon.
func TestLockedOperatorTableChangesNoOutcome(t *testing.T) {
	t.Parallel()
	for driver, lock := range map[string]string{
		testdb.DriverMySQL: "LOCK TABLES bed_attempt WRITE", testdb.DriverPostgres: "BEGIN; LOCK TABLE bed_attempt",
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, driver)
			s := open(t, db)
			u := unit()
			must(t, s.Add(t.Context(), time.Minute, u))
			conn, err := db.Open(t).Conn(t.Context())
			must(t, err)
			defer conn.Close()
			_, err = conn.ExecContext(t.Context(), lock)
			must(t, err)
			began := time.Now()
			must(t, s.Release(t.Context(), u, entry.Verdict{Err: "no", Park: true, Attempts: []journal.Attempt{{At: began, Err: "no"}}}))
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v to give a unit up", took)
			}
			if got, err := s.Get(t.Context(), u.ID); err != nil || !got.Parked || got.LastError != "no" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
