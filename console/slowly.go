package console

import (
	"context"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

// slowly makes guessing slow, and locks nobody out: a failure is answered late, and
// an address of failures has its passwords compared one after the other, beside
// the others. It is safe for concurrent use.
type slowly struct {
	// clean and suspect are the turns at bcrypt, of those without and with failures.
	clean, suspect chan struct{}
	// waiting bounds how many stand in either queue, late how many are being
	// answered late.
	waiting, late chan struct{}

	// pace is the factor of each delay; tests that are not about delays have
	// none.
	pace int

	mu       sync.Mutex
	failures map[string]failures
}

type failures struct {
	count int
	last  time.Time
}

const (
	// forgotten is for how long a failure counts.
	forgotten = 5 * time.Minute
	// firstDelay is the delay of an address's first failure; each next one is
	// twice as long.
	firstDelay, mostDelay = 250 * time.Millisecond, 2 * time.Second
	// mostWait is the longest wait in the queue; with mostDelay it stays far
	// below the 15 s that an answer may take.
	mostWait     = 8 * time.Second
	mostFailures = 4096 // addresses
)

func newSlowly() *slowly {
	return &slowly{
		clean: make(chan struct{}, 2), suspect: make(chan struct{}, 1),
		waiting: make(chan struct{}, 128), late: make(chan struct{}, 512),
		failures: map[string]failures{}, pace: 1,
	}
}

// turn waits for the right to compare a password; done ends it. errTooMany when
// that takes too long.
func (s *slowly) turn(ctx context.Context, from string) (done func(), err error) {
	queue := s.clean
	if s.count(from) > 0 {
		queue = s.suspect
	}
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
	default:
		return nil, errTooMany
	}
	t := time.NewTimer(mostWait)
	defer t.Stop()
	select {
	case queue <- struct{}{}:
		return func() { <-queue }, nil
	case <-t.C:
		return nil, errTooMany
	case <-ctx.Done():
		return nil, errTooMany
	}
}

func (s *slowly) count(from string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failures[from]; time.Since(f.last) < forgotten {
		return f.count
	}
	return 0
}

// failed notes a failure and returns when it may be answered, with what.
func (s *slowly) failed(ctx context.Context, from string) error {
	s.mu.Lock()
	f := s.failures[from]
	if time.Since(f.last) >= forgotten {
		f.count = 0
	}
	f.count++
	f.last = time.Now()
	if len(s.failures) >= mostFailures {
		clear(s.failures)
	}
	s.failures[from] = f
	s.mu.Unlock()
	select {
	case s.late <- struct{}{}:
		defer func() { <-s.late }()
	default:
		return errTooMany
	}
	delay := mostDelay
	if f.count < 4 {
		delay = firstDelay << (f.count - 1)
	}
	jitter.Sleep(ctx, delay*time.Duration(s.pace))
	return errNobody
}
