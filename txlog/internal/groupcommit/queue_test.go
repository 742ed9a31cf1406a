package groupcommit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

var (
	errRefused = errors.New("refused")
	errBusy    = errors.New("deadlock")
	errLost    = errors.New("connection lost")
)

// letter is a write of its name to a list.
type letter = Request[string]

// database is the receiver of letters.
type database struct {
	mu     sync.Mutex
	writes []string
	again  int
	fail   func(names string, attempt int) error
	tries  int
}

func (d *database) write(ctx context.Context, group []*letter, again bool) error {
	var names strings.Builder
	for _, l := range group {
		names.WriteString(l.Body)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries++
	if again {
		d.again++
	}
	if d.fail != nil {
		if err := d.fail(names.String(), d.tries); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.writes = append(d.writes, names.String())
	return nil
}

func newQueue(d *database, change func(*Options)) *Queue[string] {
	o := Options{
		Retry: Retry{
			Grace:    time.Second,
			Definite: func(err error) bool { return errors.Is(err, errRefused) || errors.Is(err, errBusy) },
			Passing:  func(err error) bool { return errors.Is(err, errBusy) },
			Refused:  func(err error) bool { return errors.Is(err, errRefused) },
		},
		MaxRows: 100, MaxBytes: 1 << 20, MinInFlight: 1, MaxInFlight: 1, Conns: 32,
	}
	if change != nil {
		change(&o)
	}
	return New(o, d.write)
}

func row(name string) *letter { return &letter{Body: name, Rows: 1, Bytes: 1, For: time.Minute} }

// held runs a write for each name while the queue is held. After its release, it returns their
// errors and doubts.
func held(q *Queue[string], names string, contexts ...context.Context) (errs []error, doubts []bool) {
	release := q.Hold()
	errs, doubts = make([]error, len(names)), make([]bool, len(names))
	var group sync.WaitGroup
	for i, name := range strings.Split(names, "") {
		ctx := context.Background()
		if i < len(contexts) && contexts[i] != nil {
			ctx = contexts[i]
		}
		group.Go(func() { doubts[i], errs[i] = q.Do(ctx, row(name)) })
		synctest.Wait()
	}
	time.Sleep(time.Second) // of the bubble's clock: contexts end meanwhile
	release()
	group.Wait()
	return errs, doubts
}

func (d *database) want(t *testing.T, writes ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.writes, writes) {
		t.Errorf("written was %q, want %q", d.writes, writes)
	}
}

func TestLoneWriteLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(database)
		q := newQueue(d, nil)
		defer q.Close(time.Second)
		for _, name := range []string{"a", "b"} {
			if doubt, err := q.Do(t.Context(), row(name)); doubt || err != nil {
				t.Fatal(doubt, err)
			}
		}
		d.want(t, "a", "b")
	})
}

func TestWhatQueuesLeavesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(database)
		q := newQueue(d, nil)
		defer q.Close(time.Second)
		held(q, "abc")
		d.want(t, "abc")
	})
}

func TestTheOneThatIsRefusedFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{fail: func(names string, _ int) error {
			if strings.Contains(names, "c") {
				return errRefused
			}
			return nil
		}}
		q := newQueue(d, nil)
		defer q.Close(time.Second)
		errs, doubts := held(q, "abcd")
		for i, err := range errs {
			if (i == 2) != errors.Is(err, errRefused) || i != 2 && err != nil || doubts[i] {
				t.Errorf("caller %d got %v, in doubt: %v", i, err, doubts[i])
			}
		}
		slices.Sort(d.writes) // they are written at the same time
		d.want(t, "a", "b", "d")
	})
}

func TestDeadlockedWriteIsRetriedWithoutDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{fail: func(_ string, try int) error {
			if try < 3 {
				return errBusy
			}
			return nil
		}}
		q := newQueue(d, nil)
		defer q.Close(time.Second)
		if doubt, err := q.Do(t.Context(), row("a")); doubt || err != nil {
			t.Fatal(doubt, err)
		}
		d.want(t, "a")
		if d.again != 0 {
			t.Error("an answered attempt counts as one that may have been applied")
		}
	})
}

func TestALostAnswerIsMadeGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{fail: func(_ string, try int) error {
			if try == 1 {
				return errLost
			}
			return nil
		}}
		q := newQueue(d, nil)
		defer q.Close(time.Second)
		errs, doubts := held(q, "ab")
		if errs[0] != nil || errs[1] != nil || doubts[0] || doubts[1] || d.again != 2 {
			t.Errorf("got %v, in doubt %v, %d repetitions", errs, doubts, d.again)
		}
		slices.Sort(d.writes) // each caller repeats its own
		d.want(t, "a", "b")
	})
}

// The write takes 7 s, like one under order keys with others waiting behind it, at a round trip of
// a third of a second.
func TestALostAnswerOfASlowWriteIsMadeGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tries := Retry{Definite: func(error) bool { return false }}, 0
		patient, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		inDoubt, err := r.Do(patient, time.Now().Add(time.Minute), func(ctx context.Context, again bool) error {
			if tries++; !again {
				return errLost
			}
			select {
			case <-time.After(7 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if inDoubt || err != nil {
			t.Errorf("after %d attempts it is in doubt (%t): %v", tries, inDoubt, err)
		}
	})
}

// The grace counts from the end of the caller's context, alone and in a group.
func TestWriteInDoubtEndsWithTheGrace(t *testing.T) {
	for _, names := range []string{"a", "ab"} {
		t.Run(names, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := new(database)
				q := newQueue(d, nil)
				defer q.Close(time.Minute)
				q.write = func(ctx context.Context, _ []*letter, _ bool) error {
					<-ctx.Done() // the server is silent
					return errLost
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				start := time.Now()
				var group sync.WaitGroup
				release := q.Hold()
				for name := range strings.SplitSeq(names, "") {
					group.Go(func() {
						if doubt, err := q.Do(ctx, row(name)); !doubt || err == nil {
							t.Errorf("got %v, in doubt: %v", err, doubt)
						}
						if took := time.Since(start); took < 10*time.Second || took > 10*time.Second+q.Grace+100*time.Millisecond {
							t.Errorf("it took %v, want 10 s and the grace of %v", took, q.Grace)
						}
					})
				}
				synctest.Wait()
				release()
				group.Wait()
			})
		})
	}
}

func TestCloseWaitsForWhatWasQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(database)
		q := newQueue(d, nil)
		release := q.Hold()
		var group sync.WaitGroup
		group.Go(func() {
			if doubt, err := q.Do(t.Context(), row("a")); doubt || err != nil {
				t.Error(doubt, err)
			}
		})
		synctest.Wait()
		group.Go(func() { q.Close(time.Minute) })
		synctest.Wait()
		if _, err := q.Do(t.Context(), row("b")); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		release()
		group.Wait()
		d.want(t, "a")
	})
}

// Two kinds leave in turns, and each kind in order of arrival.
func TestKindsTakeTurns(t *testing.T) {
	for _, c := range []struct {
		queue string // capitals are too large to share a write
		mixed bool
		most  int
		want  []string
	}{
		{"a", false, 8, []string{"a"}},
		{"aaa", false, 8, []string{"aaa"}},
		{"arara", false, 8, []string{"aaa", "rr"}},
		{"raara", false, 8, []string{"rr", "aaa"}},
		{"aaaarr", false, 3, []string{"aaa", "a", "rr"}},
		{"araara", false, 2, []string{"aa", "rr", "aa"}},
		{"raAar", false, 8, []string{"rr", "a", "A", "a"}},
		{"Aa", false, 8, []string{"A", "a"}},
		{"aRra", false, 8, []string{"aa", "R", "r"}},
		{"araar", true, 8, []string{"araar"}},
		{"araar", true, 3, []string{"ara", "ar"}},
		{"arAr", true, 8, []string{"ar", "A", "r"}},
	} {
		q := newQueue(new(database), func(o *Options) { o.Mixed, o.MaxRows = c.mixed, c.most })
		for name := range strings.SplitSeq(c.queue, "") {
			l := row(name)
			l.Alone = strings.ToUpper(name) == name
			l.Kind = strings.ToLower(name)[0]
			q.queue = append(q.queue, l)
			q.rows++
		}
		var got []string
		for len(q.queue) > 0 {
			var names string
			for _, l := range q.take() {
				names += l.Body
			}
			got = append(got, names)
		}
		if !slices.Equal(got, c.want) || q.rows != 0 {
			t.Errorf("%q, mixed %v, at most %d: got %q, want %q; %d rows are left", c.queue, c.mixed, c.most, got, c.want, q.rows)
		}
	}
}

func TestWritesInFlightFollowTheRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		least, most int
		trip, write time.Duration
		want        int
	}{
		{1, 8, ms / 20, ms / 5, 1},   // loopback
		{1, 8, 0, ms, 1},             // not known yet
		{1, 8, ms, 2 * ms, 3},        // half of it on its way
		{1, 8, ms, ms + ms/2, 5},     // most of it
		{1, 8, 10 * ms, 10 * ms, 8},  // all of it
		{2, 8, ms / 20, ms / 5, 2},   // as told
		{3, 3, 10 * ms, 11 * ms, 3},  // as told
		{1, 99, 10 * ms, 9 * ms, 32}, // no more than there are connections
	} {
		l := newLimit(&Options{MinInFlight: c.least, MaxInFlight: c.most, Conns: 32})
		if c.trip > 0 {
			l.trip.saw(c.trip, time.Now())
		}
		l.write.saw(c.write, time.Now())
		if got := l.of(0); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

func TestPanicOfAWriteDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &database{}
		q := newQueue(d, func(o *Options) { o.Conns = 1 })
		d.fail = func(names string, _ int) error {
			if names == "a" {
				panic("of the driver")
			}
			return nil
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is swallowed")
				}
			}()
			_, _ = q.Do(t.Context(), row("a"))
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if inDoubt, err := q.Do(ctx, row("b")); inDoubt || err != nil {
			t.Errorf("the next write: in doubt %v, error %v", inDoubt, err)
		}
		begun := time.Now()
		q.Close(time.Minute)
		if took := time.Since(begun); took > 0 {
			t.Errorf("Close waited for %v", took)
		}
	})
}
