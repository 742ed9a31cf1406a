package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// claims compares the time of a claim in a log with few parked rows and in a log with many.
type claims struct {
	opts *Options
	site *site
	// few and many are the medians of each round in milliseconds, by driver.
	few, many map[string]series
	// fewBytes and manyBytes are the bytes allocated by a claim in this process.
	fewBytes, manyBytes map[string]series
}

const (
	claimLimit = 100
	// claimsPerRound is the number of claims for one median.
	claimsPerRound = 11
	claimSource    = "127.0.0.1:3306/orders"
)

// heap is a log with parked rows.
type heap struct {
	place   *place
	storage *txlog.SQLStorage
	parked  int
}

func (c *claims) run(ctx context.Context, progress func(string)) (err error) {
	c.few, c.many = map[string]series{}, map[string]series{}
	c.fewBytes, c.manyBytes = map[string]series{}, map[string]series{}
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		var heaps [2]*heap
		for i, parked := range []int{c.opts.ParkedFew, c.opts.ParkedMany} {
			progress(fmt.Sprintf("claims in %s: parking %d rows", driver, parked))
			if heaps[i], err = c.heap(ctx, driver, parked); err != nil {
				return err
			}
		}
		start := time.Now()
		for round := 0; c.opts.another(round, start, claimsShare/2); round++ {
			progress(fmt.Sprintf("claims in %s: round %d", driver, round+1))
			var took [2][]float64
			var bytes [2]float64
			// In turns also within the round: the difference is small.
			for range claimsPerRound {
				for i, h := range heaps {
					ms, allocated, err := h.claim(ctx)
					if err != nil {
						return err
					}
					took[i] = append(took[i], ms)
					bytes[i] += allocated / claimsPerRound
				}
			}
			c.few[driver] = append(c.few[driver], series(took[0]).median())
			c.many[driver] = append(c.many[driver], series(took[1]).median())
			c.fewBytes[driver] = append(c.fewBytes[driver], bytes[0])
			c.manyBytes[driver] = append(c.manyBytes[driver], bytes[1])
		}
		for _, h := range heaps {
			err = errors.Join(err, h.storage.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// heap makes a log with parked rows for the claimed data source, older than the due rows.
func (c *claims) heap(ctx context.Context, driver string, parked int) (*heap, error) {
	p, err := c.site.create(driver)
	if err != nil {
		return nil, err
	}
	storage, err := txlog.Open(ctx, driver, p.db.DSN)
	if err != nil {
		return nil, err
	}
	h := &heap{place: p, storage: storage, parked: parked}
	quoted, id := "`sql`", "CONCAT('00000000-0000-7000-8000-', LPAD(i, 9, '0'), '000')"
	if driver == testdb.DriverPostgres {
		quoted, id = `"sql"`, "'00000000-0000-7000-8000-' || LPAD(i::text, 9, '0') || '000'"
	}
	const portion = 500000
	for from := 1; from <= parked; from += portion {
		to := min(from+portion-1, parked)
		columns := id + ", 'BestEffortsDelivery', '" + claimSource + "', 'UPDATE account SET balance = balance + ? WHERE id = ?', '[1,2]', " +
			"1700000000000 + i, 3, " + id + ", 0, 1, '', '', '', '', 0, 1700000000000 + i, 'the last error', 1"
		if err := p.exec(ctx, "INSERT INTO transaction_log (id, transaction_type, data_source, "+quoted+", parameters, creation_time, "+
			"async_delivery_try_times, transaction_id, statement_no, statement_count, settings, not_replayable, receipt, fingerprint, in_doubt, "+
			"next_try_time, last_error, parked) "+p.series(columns, from, to)); err != nil {
			return nil, err
		}
	}
	analyse := "ANALYZE TABLE transaction_log"
	if driver == testdb.DriverPostgres {
		// This is autovacuum's work, done now to keep it out of the measurement.
		analyse = "VACUUM (ANALYZE) transaction_log"
	}
	return h, p.exec(ctx, analyse)
}

// claim measures one claim of units left to the job before, and removes them.
func (h *heap) claim(ctx context.Context) (ms, allocated float64, err error) {
	units := make([]*entry.Unit, claimLimit)
	for i := range units {
		units[i] = &entry.Unit{ID: entry.NewID(), DataSource: claimSource,
			Statements: []entry.Statement{{SQL: "UPDATE account SET balance = balance + ? WHERE id = ?", Params: "[1,2]"}}}
	}
	if err := h.storage.Add(ctx, time.Minute, units...); err != nil {
		return 0, 0, err
	}
	if err := h.place.exec(ctx, "UPDATE transaction_log SET in_doubt = 0, lease_token = NULL, lease_until = NULL, next_try_time = creation_time "+
		"WHERE id >= '"+units[0].ID+"'"); err != nil {
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	claimed, err := h.storage.Claim(ctx, entry.ClaimRequest{DataSource: claimSource, Limit: claimLimit, Lease: time.Minute})
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil {
		return 0, 0, err
	}
	same := func(a, b *entry.Unit) bool { return a.ID == b.ID }
	if !slices.EqualFunc(claimed, units, same) {
		return 0, 0, fmt.Errorf("a claim beside %d parked rows gave %d units, not the %d that are due", h.parked, len(claimed), claimLimit)
	}
	return float64(took) / 1e6, float64(after.TotalAlloc - before.TotalAlloc), h.storage.Remove(ctx, claimed...)
}
