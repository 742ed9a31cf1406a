package soak

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// TestJudgeFindsThatAtLeastOnceAppliesTwice runs the same applications under AtLeastOnce. Their
// writes are not made for it.
func TestJudgeFindsThatAtLeastOnceAppliesTwice(t *testing.T) {
	t.Parallel()
	doubles(t, bedsql.AtLeastOnce, func(context.Context, *world) {})
}

// TestTheJudgeFindsThatAReceiptWasRemoved runs them under ExactlyOnce, and removes receipts behind
// their back.
func TestTheJudgeFindsThatAReceiptWasRemoved(t *testing.T) {
	t.Parallel()
	doubles(t, bedsql.ExactlyOnce, func(ctx context.Context, w *world) {
		for ctx.Err() == nil {
			_, _ = w.targets[bankM].direct.ExecContext(ctx, "DELETE FROM bed_receipt") // it may have to wait too long
		}
	})
}

// doubles cuts answers off until a write is applied twice, and demands that the judge finds it.
func doubles(t *testing.T, guarantee bedsql.Guarantee, meanwhile func(context.Context, *world)) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs servers")
	}
	o, _ := fromEnv(t)
	o.guarantee, o.private, o.pause, o.apps, o.bedJobs = guarantee, false, 20*time.Millisecond, o.apps[:1], o.bedJobs[:1]
	w := newWorld(t, o, testdb.DriverSQLite)
	for i := range w.jobs {
		w.startJob(i)
	}
	for i := range w.apps {
		w.startApp(i)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { meanwhile(ctx, w) })
	n := &nemesis{world: w, rng: rand.New(rand.NewPCG(1, 2)), counts: map[string]int{}, busy: map[any]bool{}}
	d, doubled, begun := w.targets[bankM], 0, time.Now()
	for doubled == 0 && time.Since(begun) < 2*time.Minute {
		for _, match := range []func([]byte) bool{testproxy.Text("UPDATE account"), testproxy.MySQLExecute} {
			struck := d.proxies[0].CutAfter(func(message []byte) bool { return n.healed.Load() || match(message) })
			n.rules = append(n.rules, rule{"cut after the request", struck})
			select {
			case <-struck:
			case <-time.After(time.Second):
			}
		}
		_ = d.direct.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM (SELECT request FROM effect GROUP BY request HAVING COUNT(*) > 1) AS doubled").Scan(&doubled)
	}
	stop()
	wg.Wait()
	n.settle()
	w.rest()
	if found := w.history().Judge(); doubled == 0 || !slices.ContainsFunc(found, func(f Finding) bool { return f.What == "doubled" }) {
		t.Errorf("%d writes are applied twice, and the judge found %v", doubled, found)
	}
}
