package besteffort

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// deafened is a log that loses the first answer to a removal. The repetition finds no entry, and
// the lease decides whose removal it was.
type deafened struct{ *journaled }

func (s deafened) Remove(ctx context.Context, units ...*entry.Unit) error {
	err := s.journaled.Remove(ctx, units...)
	if errors.Is(err, txlog.ErrLeaseLost) && time.Now().Before(units[0].Lease.Deadline) {
		return nil
	}
	return err
}

func TestSearchForEntrySurvivesAnUnansweredRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := deafened{&journaled{Memory: txlog.NewMemory(), fails: errInDoubt, arrives: 5 * time.Second}}
		removesInTheEnd(t, s, s.journaled, 10*time.Second)
	})
}

// It may have waited for its turn before it left.
func TestDoubtfulEntryIsSoughtUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &journaled{Memory: txlog.NewMemory(), takes: 4 * time.Second, fails: txlog.ErrInDoubt, arrives: 28 * time.Second}
		removesInTheEnd(t, s, s, 35*time.Second)
	})
}

// removesInTheEnd delivers a write with a late entry, written alongside, and checks after a while
// that the entry is gone.
func removesInTheEnd(t *testing.T, storage txlog.Storage, s *journaled, after time.Duration) {
	t.Helper()
	e := loggingDeliverer(storage)
	if err := e.Deliver(t.Context(), aWrite(LogAlongside, takes(time.Millisecond, attempt.Outcome{}))); err != nil {
		t.Error(err)
	}
	time.Sleep(after)
	s.wantRemoved(t)
	if units := s.units(t); len(units) != 0 {
		t.Errorf("the write is delivered, and the log holds %+v", units)
	}
	e.Close(t.Context())
}

// sql.DB.Close does not wait for running writes.
func TestDoubtfulEntryIsSoughtAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &journaled{Memory: txlog.NewMemory(), fails: txlog.ErrInDoubt, arrives: time.Second}
		e := loggingDeliverer(s)
		if err := e.Deliver(t.Context(), aWrite(LogAlongside, func() attempt.Outcome {
			e.Close(t.Context())
			time.Sleep(2 * time.Second)
			return attempt.Outcome{}
		})); err != nil {
			t.Error(err)
		}
		s.wantRemoved(t)
		if units := s.units(t); len(units) != 0 {
			t.Errorf("the write is delivered, and the log holds %+v", units)
		}
	})
}

// panicking is a log with a panicking driver.
type panicking struct{ *journaled }

func (panicking) Add(context.Context, time.Duration, ...*entry.Unit) error { panic("log") }

func TestLogPanicLeavesTheWriteUnlogged(t *testing.T) {
	t.Parallel()
	for l, out := range map[Logging]attempt.Outcome{LogBefore: {}, LogAlongside: {}, LogOnFailure: maybe} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			t.Parallel()
			e := loggingDeliverer(panicking{&journaled{Memory: txlog.NewMemory()}})
			defer e.Close(t.Context())
			d := aWrite(l, takes(0, out))
			defer func() {
				p := recover()
				if told := d.Panicked(p); p != "log" || !errors.Is(told, listener.ErrUnknownOutcome) || !errors.Is(told, txlog.ErrInDoubt) {
					t.Errorf("the panic %v is reported as %v", p, told)
				}
			}()
			t.Errorf("the caller gets %v", e.Deliver(t.Context(), d))
		})
	}
}

// It runs unlogged as configured, and no job will deliver it.
func TestPanickingUnloggedWriteIsNotTakenForLogged(t *testing.T) {
	t.Parallel()
	e := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), fails: errNoLog}, func(c *Config) { c.RunUnlogged = true })
	defer e.Close(t.Context())
	d := aWrite(LogBefore, func() attempt.Outcome { panic("driver") })
	defer func() {
		told := d.Panicked(recover())
		if errors.Is(told, listener.ErrPending) || !errors.Is(told, listener.ErrUnknownOutcome) || !errors.Is(told, errNoLog) {
			t.Errorf("the panic is reported as %v", told)
		}
	}()
	t.Errorf("it ended: %v", e.Deliver(t.Context(), d))
}
