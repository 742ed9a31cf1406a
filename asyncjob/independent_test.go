package asyncjob

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Deliveries waiting for locks delay only writes of their own data source: entries for others are
// delivered at the next tick.
func TestLockedDataSourceDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool, store := table(t, db), newStore(t)
		mustExec(t, pool, "INSERT INTO account VALUES (1, 'locked')")
		target := realTarget(t, db)
		for range 320 {
			addFor(t, store, target, false, "UPDATE account SET name = 'new' WHERE id = 1")
		}
		lock, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.ExecContext(t.Context(), "UPDATE account SET name = 'held' WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		begun, delivered := make(chan struct{}), make(chan struct{})
		other := &fakeDB{onExec: func(context.Context, string) error {
			close(delivered)
			return nil
		}}
		cfg := everySecond()
		var once sync.Once
		cfg.OnProgress = func(r Report) {
			if r.DataSources["orders"].Claimed > 0 {
				once.Do(func() { close(begun) })
			}
		}
		stop := start(t, newJob(t, store, Targets{"orders": target, "other": other.target()}, cfg))
		wait(t, "the data source with the lock", begun)
		add(t, store, "other", "one", nil)
		wait(t, "the delivery to the other one", delivered)
		if n := left(t, store); n < 320 {
			t.Errorf("%d units are left: the lock held nothing up", n)
		}
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The same holds for a data source with an endless backlog.
func TestBusyDataSourceDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	mem := newStore(t)
	delivered, full := make(chan struct{}), make(chan struct{})
	addMany(t, mem, "huge", 1000)
	var n counter
	huge := &fakeDB{onExec: func(context.Context, string) error {
		if n.inc() == 500 {
			close(full)
		}
		select {
		case <-delivered:
		default: // one comes for one that goes
			id := entry.NewID()
			u := &entry.Unit{ID: id, TransactionID: id, DataSource: "huge", Statements: []entry.Statement{{SQL: fmt.Sprint(fakeDML, "row ", id)}}}
			if err := mem.Add(context.Background(), 1e9, u); err != nil {
				return err
			}
			return mem.Release(context.Background(), u, entry.Verdict{})
		}
		return nil
	}}
	other := &fakeDB{onExec: func(context.Context, string) error {
		close(delivered)
		return nil
	}}
	stop := start(t, newJob(t, mem, Targets{"huge": huge.target(), "other": other.target()}, everySecond()))
	wait(t, "the huge data source", full)
	add(t, mem, "other", "one", nil)
	wait(t, "the delivery to the other one", delivered)
	if err := stop(); err != nil {
		t.Error(err)
	}
}
