package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

func TestARoundDrainsBatchAfterBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a round of more than a second claims more often
		mem := newStore(t)
		addMany(t, mem, "orders", 35)
		store := &spy{Storage: mem}
		cfg := brittle()
		cfg.TransactionLogFetchDataCount = 10
		r := runOnce(t, newJob(t, store, Targets{"orders": (&fakeDB{}).target()}, cfg))
		if r.Delivered != 35 || store.claims.get() != 4 {
			t.Errorf("report %v after %d claims", r, store.claims.get())
		}
	})
}

func TestStuckUnitIsMetOncePerRound(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "stuck", nil)
	addMany(t, store, "orders", 30)
	db := &fakeDB{onExec: func(_ context.Context, q string) error {
		if q == "stuck" {
			return answer{dialect.Retryable, "fake: locked"}
		}
		return nil
	}}
	cfg := brittle()
	cfg.TransactionLogFetchDataCount = 1 // the stuck row fills the whole first batch
	cfg.RetryDelay = time.Minute
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	if r.Delivered != 30 || r.Failed != 1 {
		t.Errorf("report: %v", r)
	}
	if n := countOf(db.sent, "stuck"); n != 1 {
		t.Errorf("the stuck row was tried %d times in one round", n)
	}
}

func countOf(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

func TestARoundOfFailuresEnds(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 20)
	db := always(answer{dialect.Retryable, "fake: locked"})
	cfg := brittle()
	cfg.TransactionLogFetchDataCount = 5 // and no rest: what failed is due again at once
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	for _, q := range db.sent {
		if n := countOf(db.sent, q); n != 1 {
			t.Errorf("%s was tried %d times in one round", q, n)
		}
	}
	if r.Failed < 5 {
		t.Errorf("report: %v", r)
	}
}

func TestYoungUnitsAreLeftAlone(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	cfg := brittle()
	cfg.MaxDeliveryTryDelay = time.Hour
	if r := runOnce(t, newJob(t, store, Targets{"orders": (&fakeDB{}).target()}, cfg)); r.Claimed != 0 || left(t, store) != 1 {
		t.Errorf("report: %v", r)
	}
}

func TestUnknownDataSourceIsReportedAndPushedBack(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	var unknown []*entry.Unit
	for range 3 {
		unknown = append(unknown, add(t, store, "archive", "one", nil))
	}
	addMany(t, store, "orders", 2)
	cfg, hook := logged()
	j := newJob(t, store, Targets{"orders": (&fakeDB{}).target()}, cfg)
	r := runOnce(t, j)
	if row := r.DataSources["archive"]; !row.Unknown || row.PushedBack != 3 || r.Delivered != 2 {
		t.Errorf("report: %v", r)
	}
	if n := lines(hook, "not among the job's targets"); n != 1 {
		t.Errorf("warned %d times", n)
	}
	for _, u := range unknown {
		got := get(t, store, u)
		if got.Tries != 0 || got.Parked || got.InDoubt || !strings.Contains(got.LastError, "archive") || !got.NextTry.After(time.Now().Add(50*time.Second)) {
			t.Errorf("the unit is %+v", got)
		}
	}
	if again := runOnce(t, j); again.Claimed != 0 || !again.DataSources["archive"].Unknown {
		t.Errorf("the next round: %v", again)
	}
}

func TestUnitsOfOneTransactionRunInOrder(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	const transactions, each = 5, 6
	var ids [transactions]string
	for i := range ids {
		ids[i] = entry.NewID()
	}
	var late []*entry.Unit
	for n := range each {
		for i, id := range ids {
			u := add(t, store, "orders", fmt.Sprintf("%d/%d", i, n), func(u *entry.Unit) { u.TransactionID = id })
			if n == 0 {
				late = append(late, u)
			}
		}
	}
	// The oldest become due last: the claim's order is not the order of age.
	claimed, err := store.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: transactions * each, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, last := range []bool{false, true} {
		for _, u := range claimed {
			if slices.ContainsFunc(late, func(l *entry.Unit) bool { return l.ID == u.ID }) == last {
				if err := store.Release(t.Context(), u, entry.Verdict{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var busy [transactions]atomic.Int32
	db := &fakeDB{onExec: func(_ context.Context, q string) error {
		var i, n int
		_, _ = fmt.Sscanf(q, "%d/%d", &i, &n)
		if busy[i].Add(1) != 1 {
			t.Errorf("%s ran beside another of its transaction", q)
		}
		busy[i].Add(-1)
		return nil
	}}
	if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, brittle())); r.Delivered != transactions*each {
		t.Errorf("report: %v", r)
	}
	for i := range ids {
		var got []string
		for _, q := range db.appliedCopy() {
			if strings.HasPrefix(q, fmt.Sprintf("%d/", i)) {
				got = append(got, q)
			}
		}
		if !slices.IsSorted(got) || len(got) != each {
			t.Errorf("transaction %d ran as %v", i, got)
		}
	}
}

func TestConcurrencyIsReachedAndKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flavor sqltext.Flavor
		want   int
	}{"a server": {sqltext.Postgres, 3}, "SQLite": {sqltext.SQLite, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t)
			addMany(t, store, "orders", 12)
			var mu sync.Mutex
			running, most, begun := 0, 0, 0
			full := make(chan struct{})
			db := &fakeDB{onExec: func(context.Context, string) error {
				mu.Lock()
				if begun++; begun <= c.want { // until then a statement may be one that waits
					mu.Unlock()
					return nil
				}
				running++
				if most = max(most, running); most == c.want {
					select {
					case <-full:
					default:
						close(full)
					}
				}
				mu.Unlock()
				select {
				case <-full:
				case <-time.After(patience):
				}
				mu.Lock()
				running--
				mu.Unlock()
				return nil
			}}
			target := db.target()
			target.Dialect.Flavor = c.flavor
			cfg := brittle()
			cfg.Concurrency = 3
			j := newJob(t, store, Targets{"orders": target}, cfg)
			runOnce(t, j)
			if limit := j.sources["orders"].own.pool.DB().Stats().MaxOpenConnections; most != c.want || limit != c.want {
				t.Errorf("%d deliveries at once of at most %d, want %d", most, limit, c.want)
			}
		})
	}
}

func TestDataSourcesAreServedSideBySide(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	add(t, store, "stock", "one", nil)
	var met sync.WaitGroup
	met.Add(2)
	db := &fakeDB{onExec: func(context.Context, string) error {
		met.Done()
		met.Wait() // each waits for the other
		return nil
	}}
	if r := runOnce(t, newJob(t, store, Targets{"orders": db.target(), "stock": db.target()}, brittle())); r.Delivered != 2 {
		t.Errorf("report: %v", r)
	}
}

func TestUnreadableLogFailsTheRound(t *testing.T) {
	t.Parallel()
	mem := newStore(t)
	add(t, mem, "orders", "one", nil)
	errLog := errors.New("fake: the log is down")
	store := &spy{Storage: mem, onClaim: func() ([]*entry.Unit, error) { return nil, errLog }}
	j := newJob(t, store, Targets{"orders": (&fakeDB{}).target()}, brittle())
	if r, err := j.RunOnce(t.Context()); !errors.Is(err, errLog) || !strings.Contains(err.Error(), "orders") {
		t.Errorf("report %v, error %v", r, err)
	}
	_ = mem.Close()
	if _, err := j.RunOnce(t.Context()); !errors.Is(err, txlog.ErrClosed) {
		t.Errorf("the error of a closed log is %v", err)
	}
}

func TestProgressGrowsToTheReport(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 20)
	addMany(t, store, "stock", 20)
	var seen []Report
	cfg := brittle()
	cfg.OnProgress = func(r Report) { seen = append(seen, r) } // one call at a time
	r := runOnce(t, newJob(t, store, Targets{"orders": (&fakeDB{}).target(), "stock": (&fakeDB{}).target()}, cfg))
	for i := 1; i < len(seen); i++ {
		if seen[i].Delivered < seen[i-1].Delivered || seen[i].Claimed < seen[i-1].Claimed {
			t.Fatalf("progress went from %v back to %v", seen[i-1], seen[i])
		}
	}
	if len(seen) < 40 || seen[len(seen)-1].Counts != r.Counts {
		t.Errorf("%d calls, the report is %v", len(seen), r)
	}
}

func TestPanickingListenersAndHooksAreHarmless(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 10)
	cfg := brittle()
	cfg.Bus = listener.NewBus(cfg.Logger)
	s := cfg.Bus.Subscribe(func(listener.Event) { panic("listener") })
	cfg.OnProgress = func(Report) { panic("hook") }
	r := runOnce(t, newJob(t, store, Targets{"orders": (&fakeDB{}).target()}, cfg))
	s.Close()
	if r.Delivered != 10 || s.Panics() != 20 {
		t.Errorf("report %v, %d panics", r, s.Panics())
	}
}
