package besteffort

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// funcs are attempts; nil succeeds.
type funcs struct{ first, void func() attempt.Outcome }

func (f funcs) First(context.Context) attempt.Outcome {
	if f.first == nil {
		return attempt.Outcome{}
	}
	return f.first()
}

func (f funcs) Again(ctx context.Context) attempt.Outcome { return f.First(ctx) }

func (f funcs) Void(context.Context) attempt.Outcome { return f.void() }

func (funcs) MarkReported(context.Context) attempt.Outcome { return attempt.Outcome{} }

// asked records the ends of leases claimed by its callers.
type asked struct {
	*txlog.Memory
	deadlines []time.Time
}

func (s *asked) Remove(ctx context.Context, units ...*entry.Unit) error {
	s.deadlines = append(s.deadlines, units[0].Lease.Deadline)
	return s.Memory.Remove(ctx, units...)
}

func (s *asked) Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error {
	s.deadlines = append(s.deadlines, u.Lease.Deadline)
	return s.Memory.Release(ctx, u, v)
}

// The lease tells an owner's repeated removal, after a lost answer, from another owner's removal.
// The log must know the renewed lease.
func TestOwnerReportsARenewedLeaseToTheLog(t *testing.T) {
	t.Parallel()
	refusal := errors.New("no")
	for name, outcome := range map[string]attempt.Outcome{
		"delivered": {},
		"refused":   {Err: refusal, Class: dialect.Refused},
		"pending":   {Err: refusal, Class: dialect.Retryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				quiet := logrus.New()
				quiet.SetOutput(io.Discard)
				storage := &asked{Memory: txlog.NewMemory()}
				defer func() { _ = storage.Close() }()
				e := New(Config{
					Storage: storage, Lease: 200 * time.Millisecond, LogTimeout: time.Second,
					Dialect: &dialect.Dialect{}, Logger: quiet,
				})
				defer e.Close(context.Background())
				id := entry.NewID()
				d := &InFlight{Unit: &entry.Unit{
					ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}},
				}}
				d.Attempts = funcs{first: func() attempt.Outcome {
					<-time.After(time.Until(d.Unit.Lease.Deadline)) // it takes longer than the lease
					return outcome
				}}
				_ = e.Deliver(context.Background(), d)
				if len(storage.deadlines) != 1 {
					t.Fatalf("the log was asked %d times, want once", len(storage.deadlines))
				}
				if !storage.deadlines[0].After(time.Now()) {
					t.Errorf("the lease was said to have ended at %v, it was renewed", storage.deadlines[0])
				}
			})
		})
	}
}

// overtaken is a log with a unit claimed by the job.
type overtaken struct{ *txlog.Memory }

func (overtaken) Remove(context.Context, ...*entry.Unit) error { return txlog.ErrLeaseLost }

// A writer slower than the job has no refusal: the database's answer was about the race.
func TestContentionWithTheJobIsNoRefusal(t *testing.T) {
	t.Parallel()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	storage := overtaken{txlog.NewMemory()}
	defer func() { _ = storage.Memory.Close() }()
	for class, refused := range map[dialect.Class]bool{dialect.Contention: false, dialect.Retryable: false, dialect.Refused: true} {
		e := New(Config{Storage: storage, Lease: time.Minute, LogTimeout: time.Second, RetryInitial: time.Millisecond, Dialect: &dialect.Dialect{}, Logger: quiet})
		id := entry.NewID()
		d := &InFlight{
			Unit:   &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
			Policy: Policy{AnswerIsFinal: true},
			Attempts: funcs{first: func() attempt.Outcome {
				return attempt.Outcome{Err: errors.New("deadlock"), Class: class, OnReceipt: !refused}
			}},
		}
		err := e.Deliver(t.Context(), d)
		var pending *listener.PendingError
		if !errors.As(err, &pending) || pending.Refused != refused || !refused && !errors.Is(err, txlog.ErrLeaseLost) {
			t.Errorf("%v: %v, want that the job delivers it, and a refusal: %v", class, err, refused)
		}
		e.Close(context.Background())
	}
}

// silent is a log that stops answering after the write was logged.
type silent struct{ *txlog.Memory }

func (silent) Remove(ctx context.Context, _ ...*entry.Unit) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestSilentLogDoesNotDelayADeliveredWrite(t *testing.T) {
	t.Parallel()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	storage := silent{txlog.NewMemory()}
	defer func() { _ = storage.Memory.Close() }()
	e := New(Config{
		Storage: storage, Lease: time.Minute, LogTimeout: time.Second, RetryInitial: time.Millisecond,
		Dialect: &dialect.Dialect{}, Logger: quiet,
	})
	id := entry.NewID()
	d := &InFlight{
		Unit:     &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
		Attempts: funcs{},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.Deliver(ctx, d); err != nil {
		t.Errorf("the delivered write gives %v", err)
	}
	if ctx.Err() != nil {
		t.Error("the caller waited until its own context ended")
	}
	closing, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	e.Close(closing)
}

// repeating is a log that repeats its writes.
type repeating struct{ *txlog.Memory }

func (r repeating) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	err := r.Memory.Add(ctx, lease, units...)
	for _, u := range units {
		u.AddRepeated = true
	}
	return err
}

// An unanswered attempt to log the write may arrive after the removal. The job's delivery must then
// meet the receipt.
func TestReceiptStaysWhileItsEntryMayComeBack(t *testing.T) {
	t.Parallel()
	for name, storage := range map[string]txlog.Storage{"answered": txlog.NewMemory(), "repeated": repeating{txlog.NewMemory()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() { _ = storage.Close() }()
			erased := ""
			e := New(Config{Storage: storage, Lease: time.Minute, LogTimeout: 10 * time.Second, RetryInitial: time.Millisecond,
				Dialect: &dialect.Dialect{}, Erase: func(_ context.Context, _ removal.Session, receipts []string) { erased = receipts[0] }})
			id := entry.NewID()
			d := &InFlight{
				Unit:     &entry.Unit{ID: id, TransactionID: id, Receipt: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
				Attempts: funcs{},
			}
			if err := e.Deliver(context.Background(), d); err != nil {
				t.Fatal(err)
			}
			e.Close(context.Background())
			if want := map[string]string{"answered": id}[name]; erased != want {
				t.Errorf("the erased receipt is %q, want %q", erased, want)
			}
		})
	}
}

// If the log's first INSERT is still in flight, the entry could appear after a refusal and be
// delivered. Voiding the receipt first prevents that.
func TestRefusalIsReturnedIfLateEntriesAreHarmless(t *testing.T) {
	t.Parallel()
	for name, storage := range map[string]txlog.Storage{"answered": txlog.NewMemory(), "repeated": repeating{txlog.NewMemory()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() { _ = storage.Close() }()
			quiet := logrus.New()
			quiet.SetOutput(io.Discard)
			e := New(Config{
				Storage: storage, SyncMaxDeliveryTryTimes: 1, Lease: time.Minute, LogTimeout: 10 * time.Second,
				RetryInitial: time.Millisecond, RetryMax: time.Millisecond, RetryTimeout: 10 * time.Second, Dialect: &dialect.Dialect{}, Logger: quiet,
			})
			defer e.Close(context.Background())
			id, refusal, voided := entry.NewID(), errors.New("no"), 0
			d := &InFlight{
				Unit: &entry.Unit{ID: id, TransactionID: id, Receipt: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
				Attempts: funcs{
					first: func() attempt.Outcome { return attempt.Outcome{Err: refusal, Class: dialect.Refused} },
					void: func() attempt.Outcome {
						voided++
						return attempt.Outcome{Err: dialect.ErrVoided, Class: dialect.Refused, Voided: true}
					},
				},
			}
			if err := e.Deliver(context.Background(), d); err != refusal {
				t.Errorf("got %v, want the database's own %v", err, refusal)
			}
			if want := map[string]int{"repeated": 1}[name]; voided != want {
				t.Errorf("the receipt was voided %d times, want %d", voided, want)
			}
			if logs, err := storage.List(context.Background(), txlog.Filter{}); err != nil || len(logs) != 0 {
				t.Errorf("the log holds %d units, %v; want none", len(logs), err)
			}
		})
	}
}

// unconfirmed is a log that removes entries and loses the answers.
type unconfirmed struct {
	*txlog.Memory
	answers []error
}

func (s *unconfirmed) Remove(ctx context.Context, units ...*entry.Unit) error {
	err := s.Memory.Remove(ctx, units...)
	if len(s.answers) > 0 {
		err, s.answers = s.answers[0], s.answers[1:]
	}
	return err
}

func TestRefusedWriteIsPromisedOnlyWithItsEntry(t *testing.T) {
	t.Parallel()
	told := func(err error) bool { return err == errNo }
	pending := func(inDoubt bool) func(error) bool {
		return func(err error) bool {
			return errors.Is(err, listener.ErrPending) != inDoubt && errors.Is(err, errNo) && errors.Is(err, txlog.ErrInDoubt) == inDoubt &&
				errors.Is(err, listener.ErrUnknownOutcome) == inDoubt
		}
	}
	for _, c := range []struct {
		name    string
		answers []error
		gone    bool // the caller, before its removal
		want    func(err error) bool
	}{
		{"removed", nil, false, told},
		{"not removed", []error{errNoLog}, false, pending(false)},
		{"no answer", []error{errInDoubt}, false, pending(true)},
		{"lost to another", []error{txlog.ErrLeaseLost}, false, pending(true)},
		{"gone after no answer", []error{errInDoubt}, true, told},
		{"down after no answer", []error{errInDoubt, errNoLog}, true, pending(true)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &unconfirmed{Memory: txlog.NewMemory()}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			e := loggingDeliverer(&leaving{unconfirmed: s, leave: func() {
				if c.gone {
					leave()
				}
			}})
			defer e.Close(context.Background())
			d := aWrite(LogBefore, takes(0, refusal))
			s.answers = c.answers
			if err := e.Deliver(ctx, d); !c.want(err) {
				t.Errorf("the caller gets %v", err)
			}
		})
	}
}

// leaving has the caller leave while its entry is being removed.
type leaving struct {
	*unconfirmed
	leave func()
}

func (s *leaving) Remove(ctx context.Context, units ...*entry.Unit) error {
	err := s.unconfirmed.Remove(ctx, units...)
	s.leave()
	return err
}

// unreleased is a log that loses the answers to reports on units.
type unreleased struct{ *txlog.Memory }

func (s unreleased) Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error {
	return errors.Join(txlog.ErrUnconfirmed, s.Memory.Release(ctx, u, v))
}

func TestWriteThatMayBeParkedPromisesNobody(t *testing.T) {
	t.Parallel()
	for what, d := range map[string]*InFlight{
		"must not be run again": aWrite(LogBefore, func() attempt.Outcome { return maybe }),
		"refused, soft":         aWrite(LogBefore, func() attempt.Outcome { return refusal }),
	} {
		d.Ending = ParkRefused
		if d.Attempts.First(t.Context()).Maybe() {
			d.Unit.NotReplayable = "it read"
		}
		e := loggingDeliverer(unreleased{txlog.NewMemory()})
		err := e.Deliver(t.Context(), d)
		var pending *listener.PendingError
		var parked *listener.RefusedError
		if !errors.As(err, &pending) || !pending.Parking || pending.Parked || errors.As(err, &parked) || strings.Contains(err.Error(), "will deliver") {
			t.Errorf("%s: reported as %v", what, err)
		}
		e.Close(t.Context())
	}
}

// A refusal after an unanswered attempt does not settle that attempt. Within a soft transaction no
// one may decide that the write will never be applied.
func TestSoftRefusalInDoubtIsParkedByNobody(t *testing.T) {
	t.Parallel()
	store, tries := txlog.NewMemory(), 0
	d := aWrite(LogBefore, func() attempt.Outcome {
		if tries++; tries == 1 {
			return maybe
		}
		return refusal
	})
	d.Ending, d.Unit.Receipt = ParkRefused, "r"
	e := loggingDeliverer(store, func(c *Config) { c.SyncMaxDeliveryTryTimes = 1 })
	defer e.Close(t.Context())
	err := e.Deliver(t.Context(), d)
	var pending *listener.PendingError
	if !errors.As(err, &pending) || pending.Parked || tries != 2 {
		t.Errorf("reported as %v after %d tries", err, tries)
	}
	units, err := store.List(t.Context(), txlog.Filter{})
	if err != nil || len(units) != 1 || units[0].Parked || !units[0].InDoubt {
		t.Errorf("the log holds %+v, %v", units, err)
	}
}

// Another request under the key may have been applied before.
func TestOnlyItsReceiptReportsKeyedRequestUnapplied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		receipt attempt.Outcome
		want    error
	}{
		"there":               {attempt.Outcome{Found: true, Replayed: true}, nil},
		"none":                {attempt.Outcome{Class: dialect.Refused, Voided: true, Err: dialect.ErrVoided}, listener.ErrNotLogged},
		"that cannot be read": {notApplied, listener.ErrUnknownOutcome},
	} {
		for _, logging := range []Logging{LogAlongside, LogOnFailure} {
			d := aWrite(logging, func() attempt.Outcome { return notApplied })
			d.Unit.Receipt, d.Unit.Fingerprint = "key", "f"
			d.Attempts = funcs{first: func() attempt.Outcome { return notApplied }, void: func() attempt.Outcome { return c.receipt }}
			e := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), fails: errNoLog})
			if err := e.Deliver(t.Context(), d); !errors.Is(err, c.want) {
				t.Errorf("its receipt is %s, logging %d: reported as %v, want %v", name, logging, err, c.want)
			}
			e.Close(t.Context())
		}
	}
}

// unrenewed is a log without renewals.
type unrenewed struct{ *txlog.Memory }

func (unrenewed) Renew(context.Context, time.Duration, ...*entry.Unit) ([]*entry.Unit, error) {
	return nil, errNoLog
}

// By then the job may have delivered the unit and erased its receipt.
func TestGroupUnitWithExpiredLeaseIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := loggingDeliverer(unrenewed{txlog.NewMemory()})
		defer e.Close(context.Background())
		sent := 0
		slow := aWrite(LogBefore, takes(time.Minute, attempt.Outcome{}))
		next := aWrite(LogBefore, func() attempt.Outcome { sent++; return attempt.Outcome{} })
		if errs := e.Log(t.Context(), slow, next); errs != nil {
			t.Fatal(errs)
		}
		e.Keep(slow)
		e.Keep(next)
		if err := e.DeliverLogged(t.Context(), slow); err != nil {
			t.Error(err)
		}
		if err := e.DeliverLogged(t.Context(), next); !errors.Is(err, listener.ErrPending) || !errors.Is(err, txlog.ErrLeaseLost) || sent != 0 {
			t.Errorf("it was sent %d times, and its caller gets %v", sent, err)
		}
	})
}
