package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// operation does the work once, on the caller's own row number n.
type operation func(ctx context.Context, n int64) error

// setup is a contender ready for the turns of a scene.
type setup struct {
	// caller makes the operation of one caller; release is called at the end
	// of the turn.
	caller func(ctx context.Context) (do operation, release func(), err error)
	// idle releases the connections between turns, to bound their number over all contenders.
	idle func()
	// outstanding counts the remaining entries and receipts. It is nil for a contender without
	// work after a call.
	outstanding func(context.Context) (logs, receipts int64, err error)
	// check compares the databases with the number of done operations.
	check func(ctx context.Context, done int64) error
	// receipts means that each write must leave a receipt.
	receipts bool
	// unlogged means that no write may leave an entry.
	unlogged bool
	close    func() error

	done int64
	// sawLogs and sawReceipts mean that some were seen under load.
	sawLogs, sawReceipts bool
}

// turn is the measurement of one turn.
type turn struct {
	perSecond float64
	p50       time.Duration
	// writes is the number of writes in it, and cpu is their cost.
	writes int
	cpu    spent
}

// and is the mean of two turns of a contender in a round.
func (t turn) and(other turn) turn {
	return turn{
		perSecond: (t.perSecond + other.perSecond) / 2,
		p50:       (t.p50 + other.p50) / 2,
		writes:    t.writes + other.writes,
		cpu:       t.cpu.plus(other.cpu),
	}
}

// rowsPerCaller is the number of each caller's own rows, so that callers do not wait for each
// other's row locks.
const rowsPerCaller = 200

// patience is how long anything may take before it is called stuck.
const patience = 20 * time.Second

// sample is the end and the duration of one operation.
type sample struct {
	end  time.Time
	took time.Duration
}

// run starts the callers, lets them warm up, and measures for a while. A write is done after the
// removal of its entry, even if the caller does not wait for that. The count is therefore the
// number of returned calls, less the growth in entries that wait for their removal.
func (s *setup) run(ctx context.Context, callers int, warmUp, length time.Duration, watch processes, profile string) (turn, error) {
	runtime.GC() // one contender's garbage is not another's work
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var stop atomic.Bool
	var ended atomic.Int64
	var all sync.WaitGroup
	samples := make([][]sample, callers)
	var first sync.WaitGroup // each caller's operation that dials
	first.Add(callers)
	for c := range callers {
		all.Go(func() {
			begun := sync.OnceFunc(first.Done)
			defer begun()
			ctx, end := context.WithCancel(ctx) // callers share none, as requests do not
			defer end()
			do, release, err := s.caller(ctx)
			if err != nil {
				cancel(err)
				return
			}
			defer release()
			own := make([]sample, 0, 4096)
			for n := int64(0); !stop.Load() && ctx.Err() == nil; n++ {
				begin := time.Now()
				if err := do(ctx, int64(c*rowsPerCaller)+n%rowsPerCaller+1); err != nil {
					cancel(err)
					break
				}
				now := time.Now()
				own = append(own, sample{now, now.Sub(begin)})
				ended.Add(1)
				begun()
			}
			samples[c] = own
		})
	}
	halt := func() {
		stop.Store(true)
		all.Wait()
	}
	first.Wait()
	var err error
	if s.unlogged {
		// The first write of all is logged before it is sent, because its session is still
		// unknown. Its entry may be removed a little later.
		err = s.awaitEmpty(ctx, false)
	}
	if err = errors.Join(err, sleep(ctx, warmUp)); err != nil {
		halt()
		return turn{}, err
	}
	before, err := s.waiting(ctx)
	if err != nil {
		halt()
		return turn{}, err
	}
	endProfile, err := startProfile(profile)
	if err != nil {
		halt()
		return turn{}, err
	}
	cpu := watch.now()
	counted := ended.Load()
	from := time.Now()
	err = sleep(ctx, length)
	// On a busy machine perhaps no operation has ended yet.
	for err == nil && ended.Load() == counted && time.Since(from) < patience {
		err = sleep(ctx, length)
	}
	to := time.Now()
	cpu = watch.now().minus(cpu)
	err = errors.Join(err, endProfile())
	after, lookErr := s.waiting(ctx)
	halt()
	if err := errors.Join(err, lookErr, context.Cause(ctx)); err != nil {
		return turn{}, err
	}
	var t turn
	var took []time.Duration
	for _, own := range samples {
		s.done += int64(len(own))
		for _, one := range own {
			if one.end.After(from) && !one.end.After(to) {
				took = append(took, one.took)
			}
		}
	}
	if len(took) == 0 {
		return turn{}, fmt.Errorf("nothing was done within %v", to.Sub(from))
	}
	slices.Sort(took)
	t.p50 = took[len(took)/2]
	t.writes, t.cpu = len(took), cpu
	t.perSecond = max(0, float64(int64(len(took))-(after-before))) / to.Sub(from).Seconds()
	return t, nil
}

// waiting counts the remaining entries.
func (s *setup) waiting(ctx context.Context) (int64, error) {
	if s.outstanding == nil {
		return 0, nil
	}
	logs, receipts, err := s.outstanding(ctx)
	s.sawLogs = s.sawLogs || logs > 0
	s.sawReceipts = s.sawReceipts || receipts > 0
	return logs, err
}

// awaitEmpty waits until no entry is left, and with erased no receipt either.
func (s *setup) awaitEmpty(ctx context.Context, erased bool) error {
	for start := time.Now(); s.outstanding != nil; {
		logs, receipts, err := s.outstanding(ctx)
		if err != nil {
			return err
		}
		if logs == 0 && (receipts == 0 || !erased) {
			break
		}
		if time.Since(start) > patience {
			return fmt.Errorf("%d entries and %d receipts are left %v after the last caller returned", logs, receipts, patience)
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// startProfile writes a CPU profile to a file; without a path it does nothing.
func startProfile(path string) (end func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func profilePath(dir string, parts ...string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, strings.ReplaceAll(strings.Join(parts, "_"), " ", "-")+".pprof")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
