package asyncjob

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// start runs a job in the background. stop ends it and waits for the end.
func start(t *testing.T, j *Job) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = j.Run(ctx)
	}()
	stop = func() error {
		cancel()
		wait(t, "the end of Run", done)
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func everySecond() Config {
	cfg := brittle()
	cfg.Cron = "* * * * * ?"
	return cfg
}

func TestRunDeliversByCron(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	delivered := make(chan struct{})
	db := &fakeDB{onExec: func(context.Context, string) error {
		close(delivered)
		return nil
	}}
	stop := start(t, newJob(t, store, Targets{"orders": db.target()}, everySecond()))
	wait(t, "the delivery", delivered)
	if err := stop(); err != nil || left(t, store) != 0 {
		t.Errorf("Run returned %v and left %d units", err, left(t, store))
	}
}

func TestTickIsSkippedWhileARoundRuns(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	begun, release, skipped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	db := &fakeDB{onExec: func(context.Context, string) error {
		close(begun)
		<-release
		return nil
	}}
	cfg, hook := logged()
	cfg.Cron = "* * * * * ?"
	stop := start(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	wait(t, "the first round", begun)
	var once sync.Once
	deadline := time.After(patience)
	for poll := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-poll.C:
			for _, e := range hook.AllEntries() {
				if strings.Contains(e.Message, "a tick is skipped") {
					once.Do(func() { close(skipped) })
				}
			}
		case <-deadline:
			t.Fatal("no tick was skipped")
		case <-skipped:
			poll.Stop()
			if dials, _ := db.counts(); dials != 2 { // one round's probe and delivery
				t.Errorf("%d dials: another round began beside the first", dials)
			}
			close(release)
			if err := stop(); err != nil {
				t.Error(err)
			}
			return
		}
	}
}

func TestRunSurvivesARoundThatPanics(t *testing.T) {
	t.Parallel()
	mem := newStore(t)
	add(t, mem, "orders", "one", nil)
	delivered := make(chan struct{})
	var n counter
	store := &spy{Storage: mem, onClaim: func() ([]*entry.Unit, error) {
		if n.inc() == 1 {
			panic("fake: the storage panics")
		}
		return mem.Claim(context.Background(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Minute})
	}}
	db := &fakeDB{onExec: func(context.Context, string) error {
		close(delivered)
		return nil
	}}
	stop := start(t, newJob(t, store, Targets{"orders": db.target()}, everySecond()))
	wait(t, "the delivery by a later round", delivered)
	_ = stop()
}

func TestRunFinishesStartedWorkAndReturnsTheRest(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	first := add(t, store, "orders", "first", nil)
	var rest []*entry.Unit
	for range 10 {
		rest = append(rest, add(t, store, "orders", "rest", nil))
	}
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	db := &fakeDB{onExec: func(ctx context.Context, _ string) error {
		once.Do(func() { close(begun) })
		<-release
		return ctx.Err()
	}}
	cfg := everySecond()
	cfg.Concurrency = 1
	j := newJob(t, store, Targets{"orders": db.target()}, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	wait(t, "a delivery", begun)
	cancel()
	select {
	case err := <-ended:
		t.Fatalf("Run returned %v with a delivery in flight", err)
	default:
	}
	close(release)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Run does not end")
	}
	if _, err := store.Get(t.Context(), first.ID); !errors.Is(err, txlog.ErrNotFound) {
		t.Errorf("what was in flight was not finished: %v", err)
	}
	if _, sent := db.counts(); sent != 1 {
		t.Errorf("%d statements were sent", sent)
	}
	for _, u := range rest {
		if got := get(t, store, u); got.Leased || got.InDoubt || got.Tries != 0 {
			t.Fatalf("a unit that was not begun is %+v", got)
		}
	}
}

func TestWorkCutOffByShutdownIsInDoubt(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	u := add(t, store, "orders", "one", nil)
	ctx, cancel := context.WithCancel(t.Context())
	db := &fakeDB{onExec: func(ctx context.Context, _ string) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	cfg := brittle()
	cfg.ShutdownTimeout = 10 * time.Millisecond
	r, err := newJob(t, store, Targets{"orders": db.target()}, cfg).RunOnce(ctx)
	if !errors.Is(err, context.Canceled) || r.PushedBack != 1 {
		t.Errorf("report %v, %v", r, err)
	}
	if got := get(t, store, u); !got.InDoubt || got.Tries != 0 || got.Leased || got.Parked {
		t.Errorf("the unit is %+v", got)
	}
}

func TestARoundUnderAnEndedContextTouchesNothing(t *testing.T) {
	t.Parallel()
	mem, db := newStore(t), &fakeDB{}
	add(t, mem, "orders", "one", nil)
	store := &spy{Storage: mem}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newJob(t, store, Targets{"orders": db.target()}, brittle()).RunOnce(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if dials, _ := db.counts(); dials != 0 || store.claims.get() != 0 {
		t.Errorf("%d dials, %d claims", dials, store.claims.get())
	}
}

func TestOnlyOneRunAtATime(t *testing.T) {
	t.Parallel()
	j := newJob(t, newStore(t), nil, brittle())
	stop := start(t, j)
	for !j.running.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := j.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("a second Run returned %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if _, err := j.RunOnce(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("RunOnce after Close: %v", err)
	}
	if err := j.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// The end of the job says nothing of a unit, so its last error stays.
func TestShutdownLeavesNoErrorOnAUnit(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(cutOff func(context.Context) error) *fakeDB{
		"in the dial": func(cutOff func(context.Context) error) *fakeDB {
			dials := 0
			return &fakeDB{onDial: func(ctx context.Context) error {
				if dials++; dials == 1 { // the probe
					return nil
				}
				return cutOff(ctx)
			}}
		},
		"in the statement": func(cutOff func(context.Context) error) *fakeDB {
			return &fakeDB{onExec: func(ctx context.Context, _ string) error { return cutOff(ctx) }}
		},
		"in the statement, answered": func(cutOff func(context.Context) error) *fakeDB {
			return &fakeDB{onExec: func(ctx context.Context, _ string) error {
				_ = cutOff(ctx)
				return answer{dialect.Retryable, "fake: canceled on user request"}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t)
			u := add(t, store, "orders", "one", nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			db := database(func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			})
			cfg := brittle()
			cfg.ShutdownTimeout = time.Millisecond
			if r, err := newJob(t, store, Targets{"orders": db.target()}, cfg).RunOnce(ctx); err == nil || r.PushedBack != 1 {
				t.Errorf("report %v, %v", r, err)
			}
			if got := get(t, store, u); got.LastError != "" || got.Tries != 0 || got.Parked || got.Leased {
				t.Errorf("the unit is %+v", got)
			}
		})
	}
}

func TestCloseIgnoresConnectionsCutWhileIdle(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	add(t, store, "orders", "one", nil)
	db := &fakeDB{onClose: func() error { return errors.New("fake: broken pipe") }}
	j := newJob(t, store, Targets{"orders": db.target()}, brittle())
	runOnce(t, j)
	// The purge dropped the round's connection: without one there is nothing to cut.
	must(t, j.sources["orders"].own.pool.DB().PingContext(t.Context()))
	idle := db.closes
	if err := j.Close(); err != nil {
		t.Errorf("Close returned %v", err)
	}
	if db.closes == idle {
		t.Error("no connection was idle")
	}
}
