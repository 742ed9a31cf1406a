package truth

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// repeatedStorage had to repeat what it added: the first INSERT may still come.
type repeatedStorage struct {
	txlog.Storage
	added []entry.Unit
}

func (s *repeatedStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	err := s.Storage.Add(ctx, lease, units...)
	for _, u := range units {
		u.AddRepeated = true
		s.added = append(s.added, *u)
	}
	return err
}

// A refusal that its caller got is nothing for a person to look at.
func TestLateEntryOfAReturnedRefusalIsRemoved(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		late := &repeatedStorage{}
		r := rig.New(t, db, rig.ExactlyOnce, func(c *bedsql.Config) { late.Storage, c.Storage = c.Storage, late })
		r.ReceiptTable()
		r.Account(1)
		if err := r.Fails(r.Wrapped, "INSERT INTO account VALUES (1, 5)"); errors.Is(err, bedsql.ErrPending) {
			t.Fatal(err)
		}
		r.WantNoLog()
		u := late.added[0]
		if err := late.Storage.Add(t.Context(), time.Second, &u); err != nil {
			t.Fatal(err)
		}
		bus := listener.NewBus(rig.Quiet())
		events := make(chan listener.EventType, 16)
		sub := bus.Subscribe(func(ev listener.Event) { events <- ev.Type })
		report := asyncjob.Report{}
		rig.Eventually(t, "its lease has ended", func() bool {
			report = r.RunOnce(func(c *asyncjob.Config) { c.Bus = bus })
			return report.Claimed == 1
		})
		sub.Close()
		close(events)
		removed := false
		for ev := range events {
			removed = removed || ev == listener.Removed
		}
		if report.Refused != 1 || report.Parked != 0 || !removed {
			t.Errorf("the job: %+v, removed told: %t", report, removed)
		}
		r.WantNoLog()
		r.WantBalances(1)
	})
}

// Under AtLeastOnce no receipt could prevent the delivery of an entry that comes back. So the row
// stays, and the caller gets no refusal.
func TestAtLeastOnceRefusalAwaitsItsEntrysRemoval(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		late := &repeatedStorage{}
		r := rig.New(t, db, func(c *bedsql.Config) { late.Storage, c.Storage = c.Storage, late })
		r.Account(1)
		err := r.Fails(r.Wrapped, "INSERT INTO account VALUES (1, 5)")
		var pending *bedsql.PendingError
		if !errors.As(err, &pending) || !pending.Parked {
			t.Fatalf("got %v, want that it is parked", err)
		}
		// The reason for the refusal is gone when the first INSERT arrives.
		r.Exec("DELETE FROM account")
		u := late.added[0]
		if err := late.Storage.Add(t.Context(), time.Second, &u); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the job: %+v, want that it leaves the unit to the operator", report)
		}
		r.WantBalances()
		r.WantParked("may come back")
	})
}
