package job

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// A round claims for all data sources side by side, and their rows are
// neighbours in the log's index.
func TestClaimsForOneDataSourceHideNoOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		storage, err := txlog.Open(context.Background(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = storage.Close() }()
		const dataSources = 4
		for i := range dataSources {
			u := &entry.Unit{ID: entry.NewID(), DataSource: fmt.Sprintf("ds_%d", i), Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
			err := storage.Add(context.Background(), time.Minute, u)
			if err == nil {
				err = storage.Release(context.Background(), u, entry.Verdict{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for round := range 100 {
			var all sync.WaitGroup
			for i := range dataSources {
				all.Go(func() {
					units, err := storage.Claim(context.Background(), entry.ClaimRequest{DataSource: fmt.Sprintf("ds_%d", i), Limit: 10, Lease: time.Minute})
					if err != nil || len(units) != 1 {
						t.Errorf("round %d: the claim for data source %d gave %d units (%v), want the one that is due", round, i, len(units), err)
						return
					}
					if err := storage.Release(context.Background(), units[0], entry.Verdict{}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
		}
	})
}
