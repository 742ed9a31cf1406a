package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

var errRefusedDial = errors.New("fake: connection refused")

func TestOutageIsProbedWithoutWalkingRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a round of more than a second claims more often
		mem := newStore(t)
		addMany(t, mem, "orders", 250)
		addMany(t, mem, "stock", 3)
		store := &spy{Storage: mem}
		down := &fakeDB{onDial: func(context.Context) error { return errRefusedDial }}
		up := &fakeDB{}
		r := runOnce(t, newJob(t, store, Targets{"orders": down.target(), "stock": up.target()}, brittle()))
		if dials, sent := down.counts(); dials != 1 || sent != 0 {
			t.Errorf("%d dials, %d statements on a data source that is down", dials, sent)
		}
		if row := r.DataSources["orders"]; !errors.Is(row.Unreachable, errRefusedDial) || row.Claimed != 0 {
			t.Errorf("the report of the data source that is down: %+v", row)
		}
		if n := store.claims.get(); n != 1 {
			t.Errorf("%d claims, only the reachable data source deserves one", n)
		}
		if r.DataSources["stock"].Delivered != 3 || !strings.Contains(r.String(), "unreachable: orders") {
			t.Errorf("report: %v", r)
		}
		waiting, _ := mem.List(t.Context(), txlog.Filter{DataSource: "orders", Limit: 1000})
		for _, u := range waiting {
			if u.Tries != 0 || u.Parked || u.InDoubt {
				t.Fatalf("the outage left its mark on %+v", u)
			}
		}
	})
}

func TestRefusedDialIsAnOutage(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	u := add(t, store, "orders", "one", nil)
	db := &fakeDB{onDial: func(context.Context) error { return answer{dialect.Refused, "fake: access denied"} }}
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if why := r.DataSources["orders"].Unreachable; why == nil || why.Error() != "fake: access denied" {
		t.Errorf("the reason is %v", why)
	}
	if got := get(t, store, u); got.Parked || got.Tries != 0 {
		t.Errorf("the unit is %+v", got)
	}
}

func TestAHangingProbeIsBounded(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	db := &fakeDB{onPing: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	cfg := brittle()
	cfg.ProbeTimeout = 1e6
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	if !errors.Is(r.DataSources["orders"].Unreachable, context.DeadlineExceeded) || r.Claimed != 0 {
		t.Errorf("report: %v", r)
	}
}

func TestOutageIsLoggedAtItsBeginningAndEnd(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	db := &fakeDB{onDial: func(context.Context) error {
		if down.Load() {
			return errRefusedDial
		}
		return nil
	}}
	cfg, hook := logged()
	j := newJob(t, store, Targets{"orders": db.target()}, cfg)
	for range 3 {
		runOnce(t, j)
	}
	if n := lines(hook, "unreachable"); n != 1 {
		t.Errorf("three rounds of an outage logged %d lines", n)
	}
	down.Store(false)
	if r := runOnce(t, j); r.Delivered != 1 {
		t.Errorf("report after the outage: %v", r)
	}
	add(t, store, "orders", "two", nil)
	runOnce(t, j)
	if n := lines(hook, "reachable again"); n != 1 {
		t.Errorf("the end of the outage was logged %d times", n)
	}
	for _, e := range hook.AllEntries() {
		if !strings.Contains(e.Message, "reachable again") {
			continue
		}
		if e.Data["max_delivery_try_delay"] != max(j.cfg.MaxDeliveryTryDelay, 0) || !strings.Contains(e.Message, "each entry is due once it is older than max_delivery_try_delay") {
			t.Errorf("it does not say when entries are due: %s %v", e.Message, e.Data)
		}
	}
}

// Users learn the time of delivery from the error of their write, and from the log line at the end
// of an outage.
func TestPendingErrorsAndOutageLinesSayWhenDue(t *testing.T) {
	t.Parallel()
	pending := (&listener.PendingError{Cause: errRefusedDial}).Error()
	if want := fmt.Sprintf("MaxDeliveryTryDelay (%.0f s by default)", Config{}.WithDefaults().MaxDeliveryTryDelay.Seconds()); !strings.Contains(pending, want) {
		t.Errorf("%q does not name the %s", pending, want)
	}
	var up atomic.Bool
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	db := &fakeDB{onDial: func(context.Context) error {
		if up.Load() {
			return nil
		}
		return errRefusedDial
	}}
	cfg, hook := logged()
	cfg.MaxDeliveryTryDelay = 7 * time.Minute
	j := newJob(t, store, Targets{"orders": db.target()}, cfg)
	runOnce(t, j)
	up.Store(true)
	if r := runOnce(t, j); r.Claimed != 0 {
		t.Errorf("an entry younger than that is delivered: %v", r)
	}
	for _, e := range hook.AllEntries() {
		if strings.Contains(e.Message, "reachable again") && strings.Contains(e.Message, "older than max_delivery_try_delay") && e.Data["max_delivery_try_delay"] == cfg.MaxDeliveryTryDelay {
			return
		}
	}
	t.Errorf("the end of the outage does not say when the entry is due")
}

func lines(hook *logtest.Hook, text string) (n int) {
	for _, e := range hook.AllEntries() {
		if e.Level <= logrus.InfoLevel && strings.Contains(e.Message, text) {
			n++
		}
	}
	return n
}

// A database goes down during a delivery: connections break, and new ones fail.
func TestOutageDuringDeliveryReturnsTheRestUntried(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	store := newStore(t)
	first := add(t, store, "orders", "row 0", nil)
	var rest []*entry.Unit
	for range 20 {
		rest = append(rest, add(t, store, "orders", "row", nil))
	}
	db := &fakeDB{
		onDial: func(context.Context) error {
			if down.Load() {
				return errRefusedDial
			}
			return nil
		},
		onExec: func(context.Context, string) error {
			down.Store(true)
			return errFake
		},
	}
	cfg := brittle()
	cfg.Concurrency = 1
	cfg.RetryDelay = 1e11
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	if r.Claimed != 21 || r.PushedBack != 21 || !errors.Is(r.DataSources["orders"].Unreachable, errRefusedDial) {
		t.Errorf("report: %v", r)
	}
	if dials, sent := db.counts(); dials != 3 || sent != 1 { // probe, delivery, probe
		t.Errorf("%d dials, %d statements", dials, sent)
	}
	if got := get(t, store, first); got.Tries != 0 || !got.InDoubt || got.Parked {
		t.Errorf("the unit that met the outage is %+v", got)
	}
	for _, u := range rest {
		if got := get(t, store, u); got.Tries != 0 || got.InDoubt || got.Leased {
			t.Fatalf("a unit behind it is %+v", got)
		}
	}
	// The unit that met the outage rests, so that it cannot hold up the others if it caused the
	// outage.
	down.Store(false)
	due, err := store.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 100, Lease: 1e9})
	if err != nil || len(due) != 20 {
		t.Errorf("%d units are due, %v", len(due), err)
	}
}

func TestADialThatFailsOnceIsNoTry(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	store := newStore(t)
	u := add(t, store, "orders", "one", nil)
	db := &fakeDB{onDial: func(context.Context) error {
		if n.Add(1) == 2 { // the probe, then the delivery's
			return answer{dialect.Retryable, "fake: too many connections"}
		}
		return nil
	}}
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle()))
	if got := get(t, store, u); got.Tries != 0 || got.InDoubt || r.PushedBack != 1 || got.LastError == "" {
		t.Errorf("the unit is %+v, report %v", got, r)
	}
}
