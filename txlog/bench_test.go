package txlog_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// This is the log's cost of a delivered DML: one addition and one removal, by one caller and by
// many, next to the server and at a round trip of 1 ms.
func BenchmarkAddRemove(b *testing.B) {
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres, testdb.SQLite} {
		db := fresh(b)
		for _, trip := range []time.Duration{0, time.Millisecond} {
			if trip > 0 && db.Driver == testdb.DriverSQLite {
				continue
			}
			b.Run(fmt.Sprintf("%s/trip=%v", db.Driver, trip), func(b *testing.B) {
				via := db
				if trip > 0 {
					p := testproxy.New(b, db.Addr())
					p.Delay(trip/2, trip/2)
					via = db.Via(p.Addr())
				}
				s, err := txlog.Open(b.Context(), via.Driver, via.DSN)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				for _, callers := range []int{1, 4, 16, 64} {
					b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { addRemove(b, s, callers) })
				}
			})
		}
		emptied(b, db.Open(b))
	}
}

func emptied(b *testing.B, pool *sql.DB) {
	var n int
	if err := pool.QueryRow("SELECT count(*) FROM transaction_log").Scan(&n); err != nil || n != 0 {
		b.Errorf("%d rows were left, %v", n, err)
	}
}

// addRemove shares b.N units among the callers.
func addRemove(b *testing.B, s *txlog.SQLStorage, callers int) {
	b.ReportAllocs()
	b.ResetTimer()
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			for range (b.N + c) / callers {
				u := unit("UPDATE accounts SET balance = ? WHERE id = ?")
				u.Lease.Token = "00000000-0000-0000-0000-000000000000"
				u.Statements[0].Params = "[1,2]"
				if err := s.Add(b.Context(), time.Minute, u); err != nil {
					b.Error(err)
					return
				}
				if err := s.Remove(b.Context(), u); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "units/s")
}
