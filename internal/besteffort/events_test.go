package besteffort

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// full is a log that accepts no entries.
type full struct{ *txlog.Memory }

var errFull = errors.New("the log is full")

func (full) Add(context.Context, time.Duration, ...*entry.Unit) error { return errFull }

func TestListenersHearTheCallersAnswerOnce(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	no, busy := errors.New("no"), errors.New("busy")
	for name, c := range map[string]struct {
		storage  txlog.Storage
		outcomes []attempt.Outcome // of the attempts, the last of them repeatedly
		want     error             // nil: delivered
		attempts []error
	}{
		"delivered at once":  {outcomes: []attempt.Outcome{{}}, attempts: []error{nil}},
		"delivered by retry": {outcomes: []attempt.Outcome{{Err: busy, Class: dialect.Retryable}, {}}, attempts: []error{busy, nil}},
		"refused":            {outcomes: []attempt.Outcome{{Err: no, Class: dialect.Refused}}, want: no, attempts: []error{no}},
		"pending":            {outcomes: []attempt.Outcome{{Err: busy, Class: dialect.Retryable}}, want: listener.ErrPending, attempts: []error{busy, busy, busy}},
		"not logged":         {storage: full{txlog.NewMemory()}, want: listener.ErrNotLogged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quiet := logrus.New()
			quiet.SetOutput(io.Discard)
			if c.storage == nil {
				c.storage = txlog.NewMemory()
			}
			bus := listener.NewBus(quiet)
			bus.SetTraceParent(func(context.Context) string { return parent })
			var answers []listener.Event
			sub := bus.Subscribe(func(ev listener.Event) {
				if ev.TraceParent != parent {
					t.Errorf("%v came with the traceparent %q", ev.Type, ev.TraceParent)
				}
				if ev.Type == listener.Answered {
					answers = append(answers, ev)
				}
			})
			e := New(Config{
				Storage: c.storage, Dialect: &dialect.Dialect{}, Bus: bus, Logger: quiet,
				SyncMaxDeliveryTryTimes: 2, RetryInitial: time.Millisecond, RetryMax: time.Millisecond, RetryTimeout: time.Minute,
				Lease: time.Minute, LogTimeout: time.Second,
			})
			id := entry.NewID()
			tries := 0
			d := &InFlight{
				Unit: &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
				Attempts: funcs{first: func() attempt.Outcome {
					out := c.outcomes[min(tries, len(c.outcomes)-1)]
					tries++
					return out
				}},
			}
			err := e.Deliver(context.Background(), d)
			e.Close(context.Background())
			sub.Close()
			if !errors.Is(err, c.want) {
				t.Fatalf("the caller got %v, want %v", err, c.want)
			}
			if len(answers) != 1 {
				t.Fatalf("listeners heard of %d answers", len(answers))
			}
			a := answers[0]
			if !errors.Is(a.Err, c.want) || a.ID != id || a.DataSource != "orders" || a.Took <= 0 || a.LogTook <= 0 || a.LogTook > a.Took {
				t.Errorf("listeners heard %+v", a)
			}
			if len(a.Attempts) != len(c.attempts) {
				t.Fatalf("of %d attempts, want %d", len(a.Attempts), len(c.attempts))
			}
			for i, made := range a.Attempts {
				origin := listener.SyncRetry
				if i == 0 {
					origin = listener.Caller
				}
				if !errors.Is(made.Err, c.attempts[i]) || made.Origin != origin || made.Took < 0 || made.Began.IsZero() {
					t.Errorf("attempt %d is %+v", i, made)
				}
			}
		})
	}
}

func TestWhatIsNoTraceparentIsNotKept(t *testing.T) {
	t.Parallel()
	bus := listener.NewBus(nil)
	for _, text := range []string{"two words", "00-\n", "00-日本", string(make([]byte, 300))} {
		bus.SetTraceParent(func(context.Context) string { return text })
		if got := bus.TraceParent(t.Context()); got != "" {
			t.Errorf("%q is kept as %q", text, got)
		}
	}
	bus.SetTraceParent(nil)
	if got := bus.TraceParent(t.Context()); got != "" {
		t.Errorf("nobody names the trace, but it is %q", got)
	}
}
