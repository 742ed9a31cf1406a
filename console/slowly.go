package console

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

// slowly slows down guessing and locks no user out. A failure is answered late; the delay grows
// with the failures of its address and of its name. Passwords are compared in turns. A request
// waits first for a turn of its user at its address, then for a turn of its address, then for one
// of the whole console. So a right password waits for at most one comparison of each other address
// and of each other user at its own address, and for the guesses at its own name from its own
// address. A guess is held longer than a comparison takes, so that few run at a time. It is safe
// for concurrent use.
type slowly struct {
	// late limits the answers being delayed.
	late chan struct{}
	// pace is the factor of each delay; 0 in tests about other things.
	pace int
	seed maphash.Seed
	free int // turns

	mu       sync.Mutex
	failures map[string]failures // by addresses and by names
	// lanes are the turns: of the console, of addresses, and of users at an address.
	lanes map[string]turns
}

// turns lets as many run at a time as its capacity, in order of arrival.
type turns chan struct{}

type failures struct {
	count int
	last  time.Time
}

const (
	// forgotten is the lifetime of a failure.
	forgotten = 5 * time.Minute
	// firstDelay is the duration of a first failure, from its request on; each further failure
	// takes twice as long. mostDelay is also the longest wait for a turn. It stays below the time
	// limit of an answer, 15 s.
	firstDelay, mostDelay = 250 * time.Millisecond, 12 * time.Second

	mostFailures = 4096 // addresses
	mostLate     = 1024
	// classes is the number of addresses with turns of their own, and of names with failure counts
	// of their own.
	classes = 256
)

// newSlowly allows free turns at a time.
func newSlowly(free int) *slowly {
	return &slowly{late: make(chan struct{}, mostLate), pace: 1, seed: maphash.MakeSeed(), free: free, failures: map[string]failures{}, lanes: map[string]turns{}}
}

// class maps a text to one of a few classes, because the number of texts is unbounded.
func (s *slowly) class(text string) string {
	return fmt.Sprint("class ", maphash.String(s.seed, text)%classes)
}

// turn waits for the right to compare a user's password; done ends the turn. Unknown users share
// the empty name, and so the turns of one user. It returns errTooMany after too long a wait.
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
		s.mu.Lock()
		if s.lanes[name] == nil {
			s.lanes[name] = make(turns, s.free)
		}
		t := s.lanes[name]
		s.mu.Unlock()
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

// failed records a failure of an address, and of a name unless it is empty. It returns the error to
// answer with, after the delay since the request began.
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
