package console

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

// slowly makes guessing slow, and locks nobody out: a failure is answered late, by how
// many its address and its name have had, and passwords are compared in turns: of each
// user of an address as many wait for the address's turns as it has, and of each address as
// many for those of all. So a right password waits for one comparison of each other
// address, and of each other user of its own, and at the address of the guesses for those
// at its own name. As a guess is held for longer than a comparison takes, few are under way
// at a time. It is safe for concurrent use.
type slowly struct {
	// late bounds how many are being answered late.
	late chan struct{}
	// pace is the factor of each delay; tests that are not about delays have
	// none.
	pace int
	seed maphash.Seed
	free int // turns

	mu       sync.Mutex
	failures map[string]failures // by addresses and by names
	// lanes are the turns of all, of addresses, and of users of each.
	lanes map[string]turns
}

// turns gives as many turns at a time as it has room, to those who wait in their order.
type turns chan struct{}

type failures struct {
	count int
	last  time.Time
}

const (
	// forgotten is for how long a failure counts.
	forgotten = 5 * time.Minute
	// firstDelay is how long a first failure takes, from its request on; each next one
	// takes twice as long. mostDelay is also the longest wait for a turn, and stays below
	// the 15 s that an answer may take.
	firstDelay, mostDelay = 250 * time.Millisecond, 12 * time.Second

	mostFailures = 4096 // addresses
	mostLate     = 1024
	// classes is how many addresses take turns, and how many names' failures are counted, each
	// by itself.
	classes = 256
)

// newSlowly makes one that gives free turns at a time.
func newSlowly(free int) *slowly {
	return &slowly{late: make(chan struct{}, mostLate), pace: 1, seed: maphash.MakeSeed(), free: free, failures: map[string]failures{}, lanes: map[string]turns{}}
}

// class stands for a text: there is no end of texts, but few classes.
func (s *slowly) class(text string) string {
	return fmt.Sprint("class ", maphash.String(s.seed, text)%classes)
}

// lane gives the turns of a name.
func (s *slowly) lane(name string) turns {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes[name] == nil {
		s.lanes[name] = make(turns, s.free)
	}
	return s.lanes[name]
}

// turn waits for the right to compare a password of a user; done ends it. Those of no user
// have the empty name in common, so that they take the turns of one. errTooMany when that
// takes too long.
func (s *slowly) turn(ctx context.Context, from, user string) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, mostDelay)
	defer cancel()
	var taken []turns
	done = func() {
		for _, t := range taken {
			<-t
		}
	}
	address := s.class(from)
	for _, name := range []string{address + " " + user, address, ""} {
		t := s.lane(name)
		select {
		case t <- struct{}{}:
			taken = append(taken, t)
		case <-ctx.Done():
			done()
			return nil, errTooMany
		}
	}
	return done, nil
}

// failed notes a failure of an address, and of a name unless it is empty, in answer to a
// request that began then, and returns when it may be answered, with what.
func (s *slowly) failed(ctx context.Context, began time.Time, from, name string) error {
	count := s.count(from)
	if name != "" {
		count = max(count, s.count(s.class(name)))
	}
	select {
	case s.late <- struct{}{}:
		defer func() { <-s.late }()
	default:
		return errTooMany
	}
	delay := mostDelay
	if count < 7 {
		delay = min(firstDelay<<(count-1), mostDelay)
	}
	jitter.Sleep(ctx, (delay-time.Since(began))*time.Duration(s.pace))
	return errNobody
}

// count counts one more failure of an address or a name.
func (s *slowly) count(of string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failures[of]
	if time.Since(f.last) >= forgotten {
		f.count = 0
	}
	f.count++
	f.last = time.Now()
	if len(s.failures) >= mostFailures {
		clear(s.failures)
	}
	s.failures[of] = f
	return f.count
}
