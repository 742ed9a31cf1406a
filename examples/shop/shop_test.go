package main

import (
	"context"
	"database/sql"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// Whatever the shop does to its ledger, each order is in both databases once an operator has
// had the parked ones tried again.
func TestNoOrderIsLostToTheShopsFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) place {
		return place{"sqlite", "file:" + filepath.Join(dir, name) + "?_pragma=busy_timeout(20)&_pragma=journal_mode(wal)"}
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s := settings{
		Log: at("log.db"), Orders: at("orders.db"), Ledger: at("ledger.db"),
		Every: time.Millisecond, FaultEvery: 300 * time.Millisecond, Logger: quiet,
	}
	shop, err := open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- shop.run(ctx) }()
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
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	taken, lost := shop.counts.taken.Load(), shop.counts.lost.Load()
	shop.close()

	storage, err := txlog.Open(t.Context(), "sqlite", s.Log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer storage.Close()
	target := asyncjob.Targets{}
	for name, p := range map[string]place{"orders": s.Orders, "ledger": s.Ledger} {
		if target[name], err = sqlite.Target(p.DSN); err != nil {
			t.Fatal(err)
		}
	}
	job, err := asyncjob.New(storage, target, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, Logger: quiet})
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
	for table, p := range map[string]place{"orders": s.Orders, "entries": s.Ledger} {
		db, err := sql.Open("sqlite", p.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var n int64
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil || n != taken-lost {
			t.Errorf("%s holds %d of %d orders, %v", table, n, taken-lost, err)
		}
	}
}
