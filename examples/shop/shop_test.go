package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Whatever the shop does to its ledger, each order is in both databases once an operator has
// had the parked ones tried again.
func TestNoOrderIsLostToTheShopsFaults(t *testing.T) {
	t.Parallel()
	log, orders, ledger := testdb.MySQL(t), testdb.MySQL(t), testdb.Postgres(t)
	s := settings{Log: log.DSN, Orders: orders.DSN, Ledger: ledger.DSN, Every: time.Millisecond, FaultEvery: 300 * time.Millisecond}
	shop, err := open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { shop.run(ctx) })
	seen := time.NewTicker(10 * time.Millisecond)
	defer seen.Stop()
	for limit := time.After(time.Minute); shop.counts.refused.Load() == 0; {
		select {
		case <-seen.C:
		case <-limit:
			t.Fatalf("no fault was met: %v", &shop.counts)
		}
	}
	stop()
	running.Wait()
	taken, lost := shop.counts.taken.Load(), shop.counts.lost.Load()
	shop.close()

	storage, err := txlog.Open(t.Context(), log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer storage.Close()
	toOrders, err1 := mysql.Target(orders.DSN)
	toLedger, err2 := postgres.Target(ledger.DSN)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	job, err := asyncjob.New(storage, asyncjob.Targets{"orders": toOrders, "ledger": toLedger}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	parked, err := storage.List(t.Context(), txlog.Filter{Parked: true})
	if err != nil || len(parked) == 0 {
		t.Fatalf("%d are parked, %v", len(parked), err)
	}
	for _, u := range parked {
		if err := storage.Retry(t.Context(), u.ID); err != nil {
			t.Fatal(err)
		}
	}
	if report, err := job.RunOnce(t.Context()); err != nil || report.Parked > 0 || report.Failed > 0 {
		t.Fatalf("the job's round was %v, %v", report, err)
	}
	for table, db := range map[string]testdb.DB{"orders": orders, "entries": ledger} {
		var n int64
		if err := db.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil || n != taken-lost {
			t.Errorf("%s holds %d of %d orders, %v", table, n, taken-lost, err)
		}
	}
}
