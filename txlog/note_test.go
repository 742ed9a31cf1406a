package txlog

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// A job removes up to 256 units at a time. Recording them as delivered is one more message, and
// hardly larger than their ids.
func TestRecordingDeliveriesIsOneSmallMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db   func(testing.TB) testdb.DB
		each int // bytes for a unit: its id, and in MySQL that of the record
	}{"mysql": {testdb.MySQL, 90}, "postgres": {testdb.Postgres, 45}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.db(t)
			proxy := testproxy.New(t, db.Addr())
			s, err := Open(t.Context(), db.Driver, db.Via(proxy.Addr()).DSN, WithMaxConns(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			var size atomic.Int64
			messages := proxy.Count(func(message []byte) bool {
				size.Add(int64(len(message)))
				return true
			})
			remove := func(delivered bool) (int, int) {
				units := make([]*Unit, 250)
				ids := make([]string, len(units))
				for i := range units {
					units[i] = &Unit{ID: entry.NewID(), DataSource: "orders", Delivered: delivered, Statements: []entry.Statement{{SQL: "UPDATE a"}}}
					ids[i] = units[i].ID
				}
				if err := s.Add(t.Context(), time.Minute, units...); err != nil {
					t.Fatal(err)
				}
				messagesBefore, before := messages(), size.Load()
				if err := s.Remove(t.Context(), units...); err != nil {
					t.Fatal(err)
				}
				n, bytes := messages()-messagesBefore, int(size.Load()-before)
				states, err := s.States(t.Context(), ids...)
				if err != nil {
					t.Fatal(err)
				}
				want := map[bool]entry.State{true: entry.StateDelivered, false: entry.StateUnknown}[delivered]
				for i, got := range states {
					if got != want {
						t.Fatalf("unit %d is %s, want %s", i, got, want)
					}
				}
				return n, bytes
			}
			remove(false) // prepares
			remove(true)
			alone, aloneBytes := remove(false)
			recorded, recordedBytes := remove(true)
			t.Logf("%d messages of %d bytes, %d of %d", alone, aloneBytes, recorded, recordedBytes)
			if recorded != alone+1 {
				t.Errorf("removing delivered units took %d messages, and others %d", recorded, alone)
			}
			if more := recordedBytes - aloneBytes; more > 250*c.each {
				t.Errorf("recording 250 units took %d bytes", more)
			}
		})
	}
}
