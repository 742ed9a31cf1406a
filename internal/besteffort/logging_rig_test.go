package besteffort

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// journaled is a slow log that records the order of requests and answers.
type journaled struct {
	*txlog.Memory
	takes time.Duration
	// fails is the answer of Add. With arrives, the entry is still written, after that time.
	fails   error
	arrives time.Duration

	mu      sync.Mutex
	journal []string
}

func (s *journaled) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal = append(s.journal, what)
}

func (s *journaled) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	s.note("add")
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		s.note("cut off")
		return ctx.Err()
	}
	if s.fails == nil {
		err := s.Memory.Add(ctx, lease, units...)
		s.note("added")
		return err
	}
	if s.arrives > 0 {
		late := *units[0]
		late.Lease.Token = entry.NewID()
		units[0].Lease.Token = late.Lease.Token
		time.AfterFunc(s.arrives, func() {
			if err := s.Memory.Add(context.Background(), lease, &late); err != nil {
				panic(err)
			}
			s.note("arrived")
		})
	}
	s.note("failed")
	return s.fails
}

func (s *journaled) Remove(ctx context.Context, units ...*entry.Unit) error {
	err := s.Memory.Remove(ctx, units...)
	if err == nil {
		s.note("removed")
	} else {
		s.note("nothing to remove")
	}
	return err
}

func (s *journaled) want(t *testing.T, journal ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.journal) != fmt.Sprint(journal) {
		t.Errorf("the log was asked for %q, want %q", s.journal, journal)
	}
}

// wantRemoved checks that an entry existed and was removed.
func (s *journaled) wantRemoved(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.journal, "removed") {
		t.Errorf("the log was asked for %q, and nothing was removed", s.journal)
	}
}

func (s *journaled) units(t *testing.T) []*entry.Unit {
	t.Helper()
	units, err := s.List(context.Background(), txlog.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return units
}

func loggingDeliverer(s txlog.Storage, change ...func(*Config)) *Deliverer {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	cfg := Config{
		Storage: s, Lease: 30 * time.Second, LogTimeout: 5 * time.Second, RetryInitial: 20 * time.Millisecond, RetryMax: 500 * time.Millisecond,
		RetryTimeout: 10 * time.Second, Dialect: &dialect.Dialect{}, Logger: quiet, Unlogged: new(atomic.Uint64),
	}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg)
}

func aWrite(l Logging, first func() attempt.Outcome) *InFlight {
	id := entry.NewID()
	return &InFlight{
		Unit:     &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}},
		Attempts: funcs{first: first}, Policy: Policy{Logging: l},
	}
}

func takes(d time.Duration, out attempt.Outcome) func() attempt.Outcome {
	return func() attempt.Outcome {
		time.Sleep(d)
		return out
	}
}

var (
	errCut     = errors.New("the connection broke")
	errNo      = errors.New("no")
	errNoLog   = errors.New("the log is down")
	errInDoubt = fmt.Errorf("%w: %w", txlog.ErrInDoubt, errNoLog)
	refusal    = attempt.Outcome{Err: errNo, Class: dialect.Refused}
	maybe      = attempt.Outcome{Err: errCut, Class: dialect.Unknown}
	notApplied = attempt.Outcome{Err: errCut, Class: dialect.Unreachable}
)
