package barrier

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// groups returns how many groups each database gets.
func groups() int {
	if os.Getenv("BED_TEST_LONG") != "" {
		return 1200
	}
	return 300
}

// Whatever the network does to calls, undos and their answers, a group is done or undone as a whole, and
// nothing is undone twice.
func TestGroupsAreDoneOrUndoneUnderRandomFaults(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		const table = "CREATE TABLE done (n INT NOT NULL, k INT NOT NULL)"
		w.Exec(table)
		w.payments.Exec(table)
		w.payments.answers(func(rw http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
			body, _ := io.ReadAll(r.Body)
			k := 1
			switch {
			case strings.HasPrefix(string(body), "decline "):
				rw.WriteHeader(http.StatusPaymentRequired)
				return
			case r.URL.Path == "/refunds":
				k = -1
			}
			if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), fmt.Sprintf("INSERT INTO done VALUES (%s, %d)", body, k)); err != nil {
				bedhttp.Error(rw, r, err)
				return
			}
			rw.WriteHeader(http.StatusCreated)
		})
		net := rig.NewNetwork(t, w.payments.url)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		chance := rand.New(rand.NewPCG(seed, 0)) // Fails asks one at a time
		net.Fails(func(*http.Request) rig.Fate {
			if chance.IntN(2) == 0 {
				return rig.Passes
			}
			return rig.Fate(chance.IntN(int(rig.Fates)))
		})
		w.payments.url = net.URL
		w.calls(w.payments)
		const workers = 16
		told, mu := map[int]bedsql.Outcome{}, sync.Mutex{}
		var all sync.WaitGroup
		for worker := range workers {
			all.Go(func() {
				for n := worker + 1; n <= groups(); n += workers {
					o := bedsql.OutcomeOf(w.numbered(t.Context(), n).End(context.WithoutCancel(t.Context())))
					mu.Lock()
					told[n] = o
					mu.Unlock()
				}
			})
		}
		ended := make(chan struct{})
		go func() { defer close(ended); all.Wait() }()
		own := rig.TargetOf(t, w.DB)
		payments, err := call.Target(net.Client(), "payments", net.URL)
		w.must(err)
		job := w.JobFor(asyncjob.Targets{own.DataSource: own, "payments": payments}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
		round := func() {
			if _, err := job.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for running := true; running; round() {
			select {
			case <-ended:
				running = false
			default:
			}
		}
		net.Fails(nil)
		net.Settle()
		rig.Eventually(t, "the log is empty", func() bool { round(); return w.Left() == 0 })

		here, there := counts(w.Rig), counts(w.payments.Rig)
		for n := 1; n <= groups(); n++ {
			done, charged, refunded := here[[2]int{n, 1}], there[[2]int{n, 1}], there[[2]int{n, -1}]
			if o := told[n]; done > 1 || charged > 1 || refunded > charged || done != charged-refunded ||
				o == bedsql.OutcomeDelivered && done == 0 || o == bedsql.OutcomeCompensated && done == 1 || o == bedsql.OutcomeRefused && done == 1 ||
				o != bedsql.OutcomeDelivered && o != bedsql.OutcomeCompensated && o != bedsql.OutcomeAccepted {
				t.Errorf("group %d was %v: done %d times here, charged %d, refunded %d", n, o, done, charged, refunded)
			}
			if (n%5 == 0 || n%7 == 0) && done > 0 {
				t.Errorf("group %d is done, and a part of it was refused", n)
			}
		}
	})
}

// numbered is a group that writes a row here and calls there: a seventh is refused here, a fifth there,
// and a third is compensated soon.
func (w *world) numbered(ctx context.Context, n int) *bedsql.SoftTransaction {
	opts := []bedsql.TxOption{bedsql.Staged()}
	if n%3 == 0 {
		opts = append(opts, bedsql.CompensateAfter(50*time.Millisecond))
	}
	ctx, soft, err := bedsql.Begin(ctx, opts...)
	if err != nil {
		w.T.Error(err)
		return soft
	}
	undo, body := soft.Compensation(ctx), fmt.Sprint(n)
	text := fmt.Sprintf("INSERT INTO done VALUES (%d, 1)", n)
	if n%7 == 0 {
		text = never
	}
	if n%5 == 0 {
		body = "decline " + body
	}
	for _, send := range []func() error{
		func() error { _, err := w.Wrapped.ExecContext(bedsql.RequireRows(ctx, 1), text); return err },
		func() error {
			_, err := w.Wrapped.ExecContext(undo, fmt.Sprintf("DELETE FROM done WHERE n = %d", n))
			return err
		},
		func() error { _, err := w.service.Send(ctx, post("/charges", body)); return err },
		func() error { _, err := w.service.Send(undo, post("/refunds", fmt.Sprint(n))); return err },
	} {
		if err := send(); err != nil {
			w.T.Error(err)
		}
	}
	return soft
}

// counts counts the rows of done.
func counts(r *rig.Rig) map[[2]int]int {
	r.T.Helper()
	rows, err := r.Bare.Query("SELECT n, k FROM done")
	if err != nil {
		r.T.Fatal(err)
	}
	defer rows.Close()
	all := map[[2]int]int{}
	for rows.Next() {
		var is [2]int
		if err := rows.Scan(&is[0], &is[1]); err != nil {
			r.T.Fatal(err)
		}
		all[is]++
	}
	if err := rows.Err(); err != nil {
		r.T.Fatal(err)
	}
	return all
}
