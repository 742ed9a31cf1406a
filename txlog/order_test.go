package txlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
)

// under makes a unit under an order key.
func under(key string) *entry.Unit {
	u := unit("UPDATE a")
	u.Receipt, u.Order = u.ID, []entry.Order{{Key: key}}
	return u
}

func TestOrderKeyOfASkippedEntryIsNotPurged(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		skipped, removed := under(entry.OrderPrefix+"skipped"), under(entry.OrderPrefix+"removed")
		for _, u := range []*entry.Unit{skipped, removed} {
			if err := s.Add(t.Context(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Release(t.Context(), skipped, entry.Verdict{Park: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := logdb.Of(s).Decide(t.Context(), entry.DecideSkip, []string{skipped.ID}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), removed); err != nil {
			t.Fatal(err)
		}
		var purged int
		for purged == 0 {
			var err error
			if _, purged, err = logdb.Of(s).PurgeOrder(t.Context(), 0, ""); err != nil {
				t.Fatal(err)
			}
		}
		// Others were delivered under it: the fence at the target must stay.
		missing, err := s.Missing(t.Context(), []string{skipped.Order[0].Key})
		if purged != 1 || err != nil || len(missing) != 0 {
			t.Errorf("%d keys are purged, want 1; missing: %q, %v", purged, missing, err)
		}
		if err := s.Discard(t.Context(), skipped.ID); err != nil {
			t.Fatal(err)
		}
		var queued int
		if err := db.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bed_order_queue").Scan(&queued); err != nil || queued != 0 {
			t.Errorf("%d rows are left in the queue, %v", queued, err)
		}
	})
}

func TestFollowerThatIsParkedBeforeItsWriterKnowsOfItStillWaits(t *testing.T) {
	t.Parallel()
	s, lose, direct := openLossy(t, "lossy-order", errors.New("connection reset by peer"))
	head, follower := under(entry.OrderPrefix+"k"), under(entry.OrderPrefix+"k")
	if err := s.Add(t.Context(), time.Minute, head); err != nil {
		t.Fatal(err)
	}
	lose.Store(1 << 20)
	added := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // without an end it is not repeated for that long
	defer cancel()
	go func() { added <- s.Add(ctx, time.Minute, follower) }()
	for n := 0; n < 2; {
		if err := direct.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM transaction_log").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := direct.ExecContext(t.Context(), "UPDATE transaction_log SET parked = 1, next_try_time = 1, lease_token = NULL, lease_until = NULL WHERE id = ?", follower.ID); err != nil {
		t.Fatal(err)
	}
	lose.Store(0)
	if err := <-added; err != nil || follower.Behind != head.ID {
		t.Errorf("the repeated write: %v; it waits for %q, want %s", err, follower.Behind, head.ID)
	}
}
