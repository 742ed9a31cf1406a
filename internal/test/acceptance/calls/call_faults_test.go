package calls

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// many is how many calls each database gets.
const many = 1000

// storm is a caller with its log and a stock in databases, and its peer.
type storm struct {
	*rig.WithRig
	peer    *rig.Peer
	service *call.Service
	turn    atomic.Int64 // counts the runs of the peer's handler

	mu    sync.Mutex
	calls map[int]*result
}

// result is what the caller learnt of the call with a number.
type result struct {
	way     string
	outcome bedsql.Outcome
	stocked bool // its group changed the stock
}

// declined reports whether the peer refuses the call n, whenever it arrives.
func declined(n int) bool { return n%7 == 0 }

func newStorm(t *testing.T, db testdb.DB) *storm {
	t.Helper()
	s := &storm{WithRig: rig.NewWith(t, testdb.NewLog(t, db.Driver)), calls: map[int]*result{}}
	s.peer = rig.NewPeer(t, db, s.charge)
	s.peer.Exec("CREATE TABLE charge (n INT NOT NULL, turn INT NOT NULL)")
	cfg := s.Cfg
	cfg.Guarantee, cfg.SyncMaxDeliveryTryTimes = bedsql.ExactlyOnce, 1
	s.service = s.peer.Caller(cfg)
	return s
}

// charge is the peer's handler.
func (s *storm) charge(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	n, err := strconv.Atoi(string(body))
	if err != nil {
		s.T.Errorf("the peer is asked to charge %q", body)
	}
	if declined(n) {
		w.WriteHeader(http.StatusPaymentRequired)
		return
	}
	ctx, tx := r.Context(), bedhttp.Tx(r.Context())
	if _, err := tx.ExecContext(ctx, s.peer.Q("INSERT INTO charge VALUES (?, ?)"), n, s.turn.Add(1)); err != nil {
		bedhttp.Error(w, r, err)
		return
	}
	if !rig.Pays(w, r) {
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "charged %d", n)
}

// notes notes the outcome of the call n.
func (s *storm) notes(n int, way string, err error, stocked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[n] = &result{way, bedsql.OutcomeOf(err), stocked}
	if o := s.calls[n].outcome; o == bedsql.OutcomeUnknown || o == bedsql.OutcomeNotAccepted {
		s.T.Errorf("%s call %d: %v", way, n, err)
	}
}

func (s *storm) send(ctx context.Context, n int) (*call.Result, error) {
	return s.service.Send(ctx, rig.Post(s.T, fmt.Sprintf("/accounts/%d/charges", n), strconv.Itoa(n)))
}

// answers checks the answer to a delivered call.
func (s *storm) answers(n int, r *call.Result, err error) {
	if err != nil {
		return
	}
	if body, err := r.Body(); err != nil && !errors.Is(err, bedsql.ErrRowsUnknown) || err == nil && string(body) != fmt.Sprintf("charged %d", n) {
		s.T.Errorf("call %d is answered %q, %v", n, body, err)
	}
}

func (s *storm) plain(ctx context.Context, n int) {
	r, err := s.send(ctx, n)
	s.answers(n, r, err)
	s.notes(n, "plain", err, false)
}

// ordered sends a call that is not refused, which would park and hold up the key.
func (s *storm) ordered(ctx context.Context, worker, n int) {
	if declined(n) {
		s.plain(ctx, n)
		return
	}
	r, err := s.send(bedsql.WithOrderKey(ctx, fmt.Sprint("customer ", worker)), n)
	s.answers(n, r, err)
	s.notes(n, fmt.Sprint("ordered ", worker), err, false)
}

func (s *storm) keyed(ctx context.Context, n int) {
	var outcomes []bedsql.Outcome
	for range 2 { // the client sends its request again
		ctx, _ := bedsql.WithIdempotencyKey(ctx, fmt.Sprint("request ", n))
		r, err := s.send(ctx, n)
		s.answers(n, r, err)
		if outcomes = append(outcomes, bedsql.OutcomeOf(err)); outcomes[0] != bedsql.OutcomeAccepted || len(outcomes) == 1 {
			s.notes(n, "keyed", err, false) // an entry of the first may be left
		}
	}
	if slices.Contains(outcomes, bedsql.OutcomeDelivered) && slices.Contains(outcomes, bedsql.OutcomeRefused) {
		s.T.Errorf("the request %d got %v", n, outcomes)
	}
}

// staged sends a call beside a write.
func (s *storm) staged(ctx context.Context, n int) {
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		s.T.Error(err)
		return
	}
	r, err := s.send(ctx, n)
	if err != nil {
		s.T.Errorf("staged call %d: %v", n, err)
		return
	}
	if _, err := s.Wrapped.ExecContext(ctx, s.Q(rig.Increment), 1, 1); err != nil {
		s.T.Error(err)
	}
	err = soft.End(context.WithoutCancel(ctx))
	s.answers(n, r, err)
	s.notes(n, "staged", err, true)
}

// with sends a call by a transaction of the caller, which is rolled back now and then.
func (s *storm) with(ctx context.Context, n int) {
	tx, err := s.Home.BeginTx(ctx, nil)
	if err != nil {
		s.T.Error(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	ctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		s.T.Error(err)
		return
	}
	if _, err := tx.ExecContext(ctx, s.Q("INSERT INTO ordered VALUES (?)"), n); err != nil {
		s.T.Error(err)
	}
	r, err := s.send(ctx, n)
	if err != nil {
		s.T.Errorf("call %d with a transaction: %v", n, err)
		return
	}
	if n%5 == 0 {
		_ = tx.Rollback()
		if _, err := r.Status(); err == nil {
			s.T.Errorf("call %d of a transaction that was rolled back has an answer", n)
		}
		return
	}
	if err := tx.Commit(); err != nil {
		s.T.Error(err)
		return
	}
	err = soft.End(context.WithoutCancel(ctx))
	s.answers(n, r, err)
	s.notes(n, "with", err, false)
}

// Each call that was accepted takes effect once, and a refused one never, whatever the network does
// to requests and answers.
func TestCallsTakeEffectOnceUnderRandomFaults(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := newStorm(t, db)
		if _, err := s.WithRig.Bare.Exec("CREATE TABLE ordered (n INT NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		chance := rand.New(rand.NewPCG(seed, 0))
		s.peer.Net.Fails(func(*http.Request) rig.Fate {
			if chance.IntN(2) == 0 {
				return rig.Passes
			}
			return rig.Fate(chance.IntN(int(rig.Fates)))
		})
		const workers = 8
		var all sync.WaitGroup
		for worker := range workers {
			all.Go(func() {
				for n := worker + 1; n <= many; n += workers {
					switch ctx := t.Context(); (n / workers) % 5 {
					case 0:
						s.plain(ctx, n)
					case 1:
						s.ordered(ctx, worker, n)
					case 2:
						s.keyed(ctx, n)
					case 3:
						s.staged(ctx, n)
					case 4:
						s.with(ctx, n)
					}
				}
			})
		}
		job := s.JobFor(s.targets(), func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
		done := make(chan struct{})
		go func() { defer close(done); all.Wait() }()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			if _, err := job.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.peer.Net.Fails(nil)
		s.peer.Net.Settle()
		rig.Eventually(t, "only parked entries are left", func() bool {
			if _, err := job.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			return s.Left() == len(s.Parked())
		})
		s.check()
	})
}

func (s *storm) targets() asyncjob.Targets {
	stock := rig.TargetOf(s.T, s.DB)
	return asyncjob.Targets{rig.Payments: s.peer.Target(), stock.DataSource: stock}
}

// check compares what the caller learnt with the databases.
func (s *storm) check() {
	s.T.Helper()
	charged, turns := map[int]int{}, map[int]int{}
	for _, row := range rows(s.T, s.peer.Bare, "SELECT n, turn FROM charge") {
		charged[row[0]]++
		turns[row[0]] = row[1]
	}
	ordered := map[int]int{}
	for _, row := range rows(s.T, s.WithRig.Bare, "SELECT n, 1 FROM ordered") {
		ordered[row[0]]++
	}
	parked, want, stock := map[int]bool{}, 0, 0
	for _, u := range s.Logs() {
		var n int
		if _, err := fmt.Sscanf(u.Statements[0].SQL, "CALL POST /accounts/%d/charges", &n); err != nil || !u.Parked || !declined(n) || u.InDoubt {
			s.T.Errorf("in the log: %s: %s (parked %v, in doubt %v, %d tries)", u.Statements[0].SQL, u.LastError, u.Parked, u.InDoubt, u.Tries)
		}
		parked[n] = true
	}
	counts := map[string]int{}
	for n := 1; n <= many; n++ {
		r := s.calls[n]
		if r == nil {
			if charged[n] > 0 || ordered[n] > 0 {
				s.T.Errorf("the call %d was rolled back, and took effect", n)
			}
			continue
		}
		counts[fmt.Sprintf("%.5s %v", r.way, r.outcome)]++
		if r.stocked {
			stock++
		}
		if r.way == "with" != (ordered[n] == 1) {
			s.T.Errorf("the %s call %d: %d rows at home", r.way, n, ordered[n])
		}
		effects := 1
		if declined(n) {
			effects = 0
		}
		want += effects
		if charged[n] != effects {
			s.T.Errorf("the %s call %d (%v) took effect %d times, want %d", r.way, n, r.outcome, charged[n], effects)
		}
		switch r.outcome {
		case bedsql.OutcomeDelivered:
			if declined(n) {
				s.T.Errorf("the %s call %d was refused by its peer, and is said to be delivered", r.way, n)
			}
		case bedsql.OutcomeRefused:
			if !declined(n) || parked[n] != (r.way == "with") && r.way != "staged" {
				s.T.Errorf("the %s call %d is said to be refused; parked %v", r.way, n, parked[n])
			}
		}
	}
	if b := s.peer.Balance(1); b != want {
		s.T.Errorf("the peer's balance is %d, want %d", b, want)
	}
	if b := s.Rig.Balance(1); b != 100+stock {
		s.T.Errorf("the stock is %d, want %d", b, 100+stock)
	}
	last := map[string]int{}
	for n := 1; n <= many; n++ {
		if r := s.calls[n]; r != nil && strings.HasPrefix(r.way, "ordered") {
			if turns[n] < last[r.way] {
				s.T.Errorf("the call %d went before an earlier one of %s", n, r.way)
			}
			last[r.way] = turns[n]
		}
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		s.T.Logf("%s: %d", what, counts[what])
	}
}

func rows(t testing.TB, db *sql.DB, query string) (all [][2]int) {
	t.Helper()
	found, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		var r [2]int
		if err := found.Scan(&r[0], &r[1]); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
