package txlog_test

import (
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

// The lock for finding due rows only saves waiting. Without an effective lock (TiDB), or with the
// same lock granted by another node (Galera), the UPDATE's condition decides.
func TestNoUnitIsClaimedTwiceWithoutEffectiveLocks(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const claimers, all = 6, 120
		writer := open(t, db)
		units := someUnits(all)
		for i := range units {
			units[i].DataSource = "orders"
		}
		mustAdd(t, writer, units...)
		for _, u := range units {
			if err := writer.Release(t.Context(), u, entry.Verdict{}); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		taken := map[string]int{}
		var wg sync.WaitGroup
		for range claimers {
			s := open(t, db)
			s.Unlocked()
			wg.Go(func() {
				for {
					got, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 7, Lease: time.Hour})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for _, u := range got {
						taken[u.ID]++
					}
					done := len(taken) == all
					mu.Unlock()
					if done {
						return
					}
				}
			})
		}
		wg.Wait()
		for id, n := range taken {
			if n != 1 {
				t.Errorf("unit %s was claimed %d times", id, n)
			}
		}
	})
}
