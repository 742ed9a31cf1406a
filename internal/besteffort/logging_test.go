package besteffort

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

func TestLogAlongsideRunsBesideItsWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ log, write, both time.Duration }{
		"the log is slower":   {3 * time.Second, time.Second, 3 * time.Second},
		"the write is slower": {time.Second, 3 * time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &journaled{Memory: txlog.NewMemory(), takes: c.log}
				e := loggingDeliverer(s)
				start := time.Now()
				if err := e.Deliver(t.Context(), aWrite(LogAlongside, takes(c.write, attempt.Outcome{}))); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took != c.both {
					t.Errorf("the caller waited for %v, want %v", took, c.both)
				}
				s.want(t, "add", "added", "removed")
				e.Close(t.Context())
			})
		})
	}
}

func TestSuccessfulWriteCostsNothingOnFailureOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out  attempt.Outcome
		want error
	}{"applied": {attempt.Outcome{}, nil}, "refused": {refusal, errNo}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &journaled{Memory: txlog.NewMemory()}
			e := loggingDeliverer(s)
			if err := e.Deliver(t.Context(), aWrite(LogOnFailure, takes(0, c.out))); err != c.want {
				t.Errorf("the caller gets %v, want %v", err, c.want)
			}
			s.want(t)
			e.Close(t.Context())
		})
	}
}

// The entry reports the writer's own attempts, including those before it was written.
func TestDoubtAboutTheFirstAttemptIsStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out     attempt.Outcome
		inDoubt bool
	}{"maybe": {maybe, true}, "not applied": {notApplied, false}} {
		for _, l := range []Logging{LogAlongside, LogOnFailure} {
			t.Run(fmt.Sprint(name, l), func(t *testing.T) {
				t.Parallel()
				s := &journaled{Memory: txlog.NewMemory()}
				e := loggingDeliverer(s)
				err := e.Deliver(t.Context(), aWrite(l, takes(0, c.out)))
				if !errors.Is(err, listener.ErrPending) || !errors.Is(err, errCut) {
					t.Errorf("the caller gets %v", err)
				}
				units := s.units(t)
				if len(units) != 1 || units[0].InDoubt != c.inDoubt || units[0].Leased {
					t.Errorf("the log holds %+v, want one unit, its doubt %v", units, c.inDoubt)
				}
				e.Close(t.Context())
			})
		}
	}
}

func TestDepartingCallerDoesNotCancelItsEntry(t *testing.T) {
	t.Parallel()
	for _, l := range []Logging{LogAlongside, LogOnFailure} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &journaled{Memory: txlog.NewMemory(), takes: 2 * time.Second}
				e := loggingDeliverer(s)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := e.Deliver(ctx, aWrite(l, takes(time.Second, maybe)))
				if !errors.Is(err, listener.ErrPending) {
					t.Errorf("the caller gets %v", err)
				}
				if units := s.units(t); len(units) != 1 || !units[0].InDoubt {
					t.Errorf("the log holds %+v", units)
				}
				e.Close(t.Context())
			})
		})
	}
}

func TestSilentLogIsWaitedForUntilLogTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		l    Logging
		out  attempt.Outcome
		want error
		took time.Duration
	}{
		"alongside, applied":    {LogAlongside, attempt.Outcome{}, nil, 5 * time.Second},
		"alongside, maybe":      {LogAlongside, maybe, listener.ErrUnknownOutcome, 5 * time.Second},
		"on failure, maybe":     {LogOnFailure, maybe, listener.ErrUnknownOutcome, 6 * time.Second},
		"on failure, not there": {LogOnFailure, notApplied, listener.ErrNotLogged, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), takes: time.Hour})
				start := time.Now()
				if err := e.Deliver(t.Context(), aWrite(c.l, takes(time.Second, c.out))); !errors.Is(err, c.want) {
					t.Errorf("the caller gets %v, want %v", err, c.want)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				e.Close(t.Context())
			})
		})
	}
}

// An applied write has its Result when its context ends. Its late entry is removed afterwards.
func TestAppliedWriteAwaitsTheLogWithinItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &journaled{Memory: txlog.NewMemory(), takes: 3 * time.Second}
		e := loggingDeliverer(s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := e.Deliver(ctx, aWrite(LogAlongside, takes(0, attempt.Outcome{}))); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("it took %v", took)
		}
		e.Close(t.Context())
		s.want(t, "add", "added", "removed")
	})
}

func TestLateDoubtfulEntryIsRemovedDuringItsLease(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]time.Duration{"there": time.Nanosecond, "late": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &journaled{Memory: txlog.NewMemory(), fails: errInDoubt, arrives: arrives}
				removesInTheEnd(t, s, s, arrives+2*time.Second)
			})
		})
	}
}

func TestSearchForEntryEndsWithLeaseOrDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &journaled{Memory: txlog.NewMemory(), fails: txlog.ErrInDoubt}
		e := loggingDeliverer(s)
		for range 2 {
			if err := e.Deliver(t.Context(), aWrite(LogAlongside, takes(0, attempt.Outcome{}))); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(27 * time.Second)
		s.mu.Lock()
		before := len(s.journal)
		s.mu.Unlock()
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		if more := len(s.journal) - before; more == 0 || more > 10 {
			t.Errorf("it was looked for %d times in the last seconds of its lease", more)
		}
		s.mu.Unlock()
		_ = e.Deliver(t.Context(), aWrite(LogAlongside, takes(0, attempt.Outcome{})))
		start := time.Now()
		e.Close(t.Context())
		if took := time.Since(start); took > time.Second {
			t.Errorf("closing took %v", took)
		}
	})
}

func TestUnappliedWriteWithEntryInDoubtIsUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		l     Logging
		out   attempt.Outcome
		cause error
	}{
		"alongside, refused":      {LogAlongside, refusal, errNo},
		"alongside, maybe":        {LogAlongside, maybe, errCut},
		"alongside, not applied":  {LogAlongside, notApplied, errCut},
		"on failure, maybe":       {LogOnFailure, maybe, errCut},
		"on failure, not applied": {LogOnFailure, notApplied, errCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), fails: fmt.Errorf("%w: %w", txlog.ErrInDoubt, errNoLog)})
			err := e.Deliver(t.Context(), aWrite(c.l, takes(0, c.out)))
			if !errors.Is(err, listener.ErrUnknownOutcome) || errors.Is(err, listener.ErrPending) || !errors.Is(err, txlog.ErrInDoubt) || !errors.Is(err, c.cause) {
				t.Errorf("the caller gets %v, want it unknown with %v", err, c.cause)
			}
			e.Close(t.Context())
		})
	}
}

// The lease must not run out during a writer's long first attempt.
func TestLeaseAlongsideOutlastsItsWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &journaled{Memory: txlog.NewMemory()}
		e := loggingDeliverer(s)
		d := aWrite(LogAlongside, nil)
		d.Attempts = funcs{first: func() attempt.Outcome {
			time.Sleep(5 * time.Minute)
			if claimed, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Second}); len(claimed) != 0 || err != nil {
				t.Errorf("a job could claim it: %v, %v", claimed, err)
			}
			return attempt.Outcome{}
		}}
		if err := e.Deliver(t.Context(), d); err != nil {
			t.Error(err)
		}
		s.want(t, "add", "added", "removed")
		e.Close(t.Context())
	})
}

func TestDriverPanicLeavesTheWriteLogged(t *testing.T) {
	t.Parallel()
	for _, l := range []Logging{LogAlongside, LogOnFailure} {
		for _, fails := range []error{nil, errNoLog, txlog.ErrInDoubt} {
			t.Run(fmt.Sprint(l, fails), func(t *testing.T) {
				t.Parallel()
				s := &journaled{Memory: txlog.NewMemory(), fails: fails}
				e := loggingDeliverer(s)
				d := aWrite(l, func() attempt.Outcome { panic("driver") })
				func() {
					defer func() {
						want := listener.ErrPending
						if fails != nil {
							want = listener.ErrUnknownOutcome
						}
						p := recover()
						if told := d.Panicked(p); p != "driver" || !errors.Is(told, want) || errors.Is(told, txlog.ErrInDoubt) != (fails == txlog.ErrInDoubt) {
							t.Errorf("the panic %v is reported as %v, want %v", p, told, want)
						}
					}()
					_ = e.Deliver(t.Context(), d)
				}()
				if units := s.units(t); len(units) != 1 && fails == nil {
					t.Errorf("the log holds %+v", units)
				}
				e.Close(t.Context())
			})
		}
	}
}

// A receipt without an entry is erased with the others, except while an attempt may be in flight.
func TestReceiptWithoutEntryIsErasedOnceUnneeded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		l     Logging
		first attempt.Outcome
		void  attempt.Outcome
		erase bool
		want  error
	}{
		"on failure, applied":         {LogOnFailure, attempt.Outcome{}, attempt.Outcome{}, true, nil},
		"alongside, applied":          {LogAlongside, attempt.Outcome{}, attempt.Outcome{}, true, nil},
		"found by another attempt":    {LogOnFailure, attempt.Outcome{Found: true}, attempt.Outcome{}, false, nil},
		"decided to have been done":   {LogOnFailure, maybe, attempt.Outcome{Found: true}, false, nil},
		"decided never to be done":    {LogOnFailure, maybe, attempt.Outcome{Voided: true, Class: dialect.Refused, Err: dialect.ErrVoided}, false, listener.ErrNotLogged},
		"the target cannot be asked":  {LogOnFailure, maybe, notApplied, false, listener.ErrUnknownOutcome},
		"alongside, cannot be asked":  {LogAlongside, maybe, notApplied, false, listener.ErrUnknownOutcome},
		"alongside, decided not done": {LogAlongside, maybe, attempt.Outcome{Voided: true, Class: dialect.Refused, Err: dialect.ErrVoided}, false, listener.ErrNotLogged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			erased := 0
			e := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), fails: errNoLog}, func(c *Config) {
				c.Erase = func(_ context.Context, _ removal.Session, receipts []string) { erased += len(receipts) }
			})
			d := aWrite(c.l, nil)
			d.Attempts = funcs{first: func() attempt.Outcome { return c.first }, void: func() attempt.Outcome { return c.void }}
			d.Unit.Receipt = d.Unit.ID
			ctx, cancel := context.WithCancel(t.Context())
			if c.first.Err != nil {
				cancel() // it is decided all the same
			}
			if err := e.Deliver(ctx, d); !errors.Is(err, c.want) {
				t.Errorf("the caller gets %v, want %v", err, c.want)
			}
			cancel()
			e.Close(t.Context())
			if (erased == 1) != c.erase {
				t.Errorf("%d receipts were erased", erased)
			}
			if n := e.Unlogged.Load(); (n == 1) != (c.l == LogAlongside && c.first.Err == nil) {
				t.Errorf("%d writes were counted as applied without their entry", n)
			}
		})
	}
}
