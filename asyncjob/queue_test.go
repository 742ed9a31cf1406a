package asyncjob

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// still returns a queue of units on lanes of their own, without workers.
func still(units ...*claimed) *queue {
	q := newQueue(8, 1, nil)
	q.now = 0
	for i, u := range units {
		u.Unit.ID = fmt.Sprintf("%06d", i)
		u.TransactionID = u.Unit.ID
	}
	q.add(units)
	q.now = q.limit
	return q
}

// A claim may bring thousands of transactions: a worker must not read all of them for its next
// unit.
func TestWorkerReadsOnlyAsManyLanesAsItNeeds(t *testing.T) {
	t.Parallel()
	kind := &kindOfUnit{row: 100, delivered: time.Now()}
	fresh := func() *claimed { return &claimed{Unit: &entry.Unit{}, kind: kind} }
	failed := func() *claimed { return &claimed{Unit: &entry.Unit{Tries: 1}, kind: kind} }
	for name, c := range map[string]struct {
		units []*claimed
		set   func(*queue)
		want  int
	}{
		"none failed":              {[]*claimed{fresh(), fresh()}, func(*queue) {}, 0},
		"one failed":               {[]*claimed{fresh(), failed()}, func(*queue) {}, 1},
		"one failed, one at work":  {[]*claimed{fresh(), failed()}, func(q *queue) { q.failing = 1 }, 0},
		"all failed":               {[]*claimed{failed(), failed()}, func(*queue) {}, 0},
		"all failed, many at work": {[]*claimed{failed(), failed()}, func(q *queue) { q.failing = q.half() }, -1},
		"a kind that may wait":     {[]*claimed{fresh(), fresh()}, func(q *queue) { kind.busy, kind.row = q.half(), 0 }, -1},
	} {
		*kind = kindOfUnit{row: 100, delivered: time.Now()}
		q := still(c.units...)
		c.set(q)
		q.ready = append(q.ready, &lane{}) // whoever reads it panics
		got := -1
		if l := q.pick(true); l != nil {
			got = int(l.transaction[5] - '0')
		}
		if got != c.want {
			t.Errorf("%s: lane %d is picked, want %d", name, got, c.want)
		}
	}
}

// pickOfAll is queue.pick by reading all lanes.
func pickOfAll(q *queue, alone bool) string {
	at, failed := "", ""
	for _, l := range q.ready {
		u := l.units[0]
		switch slow := u.failedBefore() && !u.AtOnce; {
		case slow && failed == "" && alone && q.may(u.traits(), alone):
			failed = l.transaction
		case !slow && at == "" && q.may(u.traits(), alone):
			at = l.transaction
		}
	}
	if failed != "" && (at == "" || q.failing == 0 && (q.now > 1 || !q.last)) {
		return failed
	}
	return at
}

func TestWorkerPicksTheLaneAsIfItReadAll(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not a secret
	picked := 0
	for range 3000 {
		kinds := []*kindOfUnit{nil, {}, {}}
		for _, k := range kinds[1:] {
			*k = kindOfUnit{busy: r.IntN(6), failed: r.IntN(5), row: r.IntN(9), delivered: time.Now()}
		}
		var units []*claimed
		for range r.IntN(12) {
			u := &claimed{Unit: &entry.Unit{AtOnce: r.IntN(8) == 0}, kind: kinds[r.IntN(len(kinds))]}
			if r.IntN(3) == 0 {
				u.Tries = 1
			}
			units = append(units, u)
		}
		q := still(units...)
		q.now, q.failing, q.atOnce, q.last = 1+r.IntN(8), r.IntN(6), r.IntN(3), r.IntN(2) == 0
		for {
			alone := r.IntN(2) == 0
			want, got := pickOfAll(q, alone), ""
			l := q.pick(alone)
			if l != nil {
				got = l.transaction
			}
			if got != want {
				t.Fatalf("seed %d: lane %q is picked, want %q", seed, got, want)
			}
			slow := 0
			for _, left := range q.ready {
				if left.units[0].failedBefore() {
					slow++
				}
			}
			if l != nil {
				q.begin(l, alone)
				picked++
			}
			if n := q.slow(false); n != slow {
				t.Fatalf("seed %d: %d slow units are counted, want %d", seed, n, slow)
			}
			if l == nil {
				break
			}
		}
		if len(q.ready) == 0 && len(q.byTraits) != 0 {
			t.Fatalf("seed %d: %v are counted in an empty queue", seed, q.byTraits)
		}
	}
	if picked == 0 {
		t.Error("no lane was picked at all")
	}
}

// TestBacklogTakesFewMessages bounds the messages that a backlog costs the log and its target.
func TestBacklogTakesFewMessages(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const units = 512
			db := of(t)
			pool, toLog, toTarget := table(t, db), testproxy.New(t, db.Addr()), testproxy.New(t, db.Addr())
			store, target := sqlLog(t, db.Via(toLog.Addr())), realTarget(t, db.Via(toTarget.Addr()))
			cfg := brittle()
			cfg.Concurrency, cfg.DeliveryBatch = 4, 32
			job := newJob(t, store, Targets{"orders": target}, cfg)
			backlog := func(from int) {
				all := make([]*entry.Unit, units)
				for i := range all {
					all[i] = &entry.Unit{ID: entry.NewID(), DataSource: "orders", Settings: target.Settings,
						Statements: []entry.Statement{{SQL: fmt.Sprintf("INSERT INTO account VALUES (%d, 'x')", from+i)}}}
				}
				must(t, store.Add(t.Context(), time.Minute, all...))
				mustExec(t, pool, "UPDATE transaction_log SET in_doubt = 0, lease_token = NULL, lease_until = NULL, next_try_time = creation_time")
			}
			backlog(0)
			runOnce(t, job) // dials and prepares
			backlog(units)
			every := func([]byte) bool { return true }
			log, there := toLog.Count(every), toTarget.Count(every)
			if r := runOnce(t, job); r.Delivered != units {
				t.Fatalf("report: %v", r)
			}
			if n := rows(t, pool, "name = 'x'"); n != 2*units {
				t.Errorf("%d rows are there", n)
			}
			t.Logf("%d messages to the log, %d to the target", log(), there())
			// One more for each unit would be too many.
			if n := log(); n > units/2 {
				t.Errorf("%d units took %d messages to the log", units, n)
			}
			if n := there(); n > units+units/2 {
				t.Errorf("%d units took %d messages to the target", units, n)
			}
		})
	}
}
