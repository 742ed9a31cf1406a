package txlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestQueuedWritesLeaveAsOneStatement(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		s := open(t, db.Via(p.Addr()), oneWrite)
		units := someUnits(37)
		sent := p.Count(execute)
		mustAll(t, together(t, s.Adding(), len(units), func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) })())
		if n := sent(); n != 1 {
			t.Errorf("37 units were added by %d statements, want 1", n)
		}
		for i, u := range units {
			got, err := s.Get(t.Context(), u.ID)
			if err != nil || got.Unreadable != nil || len(got.Statements) != len(u.Statements) || !got.Leased || !got.InDoubt {
				t.Fatalf("unit %d came back as %+v, %v", i, got, err)
			}
			if d := time.Until(u.Lease.Deadline); d > time.Hour || d < time.Hour-time.Minute {
				t.Errorf("the deadline of unit %d is %v from now", i, d)
			}
		}
		sent = p.Count(execute)
		mustAll(t, together(t, s.Removing(), len(units), func(i int) error { return s.Remove(t.Context(), units[i]) })())
		if n := sent(); n != 1 {
			t.Errorf("37 units were removed by %d statements, want 1", n)
		}
		if n := rowCount(t, db.Open(t)); n != 0 {
			t.Errorf("%d rows were left", n)
		}
	})
}

func TestRefusedRecordFailsAloneButItsGroupWhole(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db, oneWrite)
		refuse(t, db, "refused")
		groups := make([][]*entry.Unit, 13)
		bad := map[int]bool{3: true, 4: true, 12: true}
		var want, unwanted []*entry.Unit
		for i := range groups {
			groups[i] = someUnits(1 + i%3)
			if bad[i] {
				groups[i][len(groups[i])-1].DataSource = "refused"
				unwanted = append(unwanted, groups[i]...)
			} else {
				want = append(want, groups[i]...)
			}
		}
		errs := together(t, s.Adding(), len(groups), func(i int) error { return s.Add(t.Context(), time.Hour, groups[i]...) })()
		for i, err := range errs {
			if bad[i] != (err != nil) || errors.Is(err, txlog.ErrInDoubt) {
				t.Errorf("caller %d: got error %v, want one: %v, and never a doubt", i, err, bad[i])
			}
		}
		if gone := missing(t, s, want...); len(gone) != 0 {
			t.Errorf("%d of the neighbours' units are not there", len(gone))
		}
		if gone := missing(t, s, unwanted...); len(gone) != len(unwanted) {
			t.Errorf("%d of the %d units of the refused groups were written", len(unwanted)-len(gone), len(unwanted))
		}
	})
}

func TestQueuedCallerCanGiveUpWithoutWriting(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db, oneWrite)
		units := someUnits(5)
		ctx, cancel := context.WithCancel(t.Context())
		wait := together(t, s.Adding(), len(units), func(i int) error {
			if i == 2 {
				err := s.Add(ctx, time.Hour, units[i])
				if !errors.Is(err, context.Canceled) || errors.Is(err, txlog.ErrInDoubt) {
					t.Errorf("got error %v, want a cancellation and no doubt", err)
				}
				return nil
			}
			return s.Add(t.Context(), time.Hour, units[i])
		})
		cancel()
		s.Adding().Await(t, 4)
		mustAll(t, wait())
		if gone := missing(t, s, units...); len(gone) != 1 || !gone[units[2].ID] {
			t.Errorf("missing are %v, want only that of the caller who gave up", gone)
		}
	})
}

func TestCallersLearnTheirLossInSharedRemovals(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, untold := range []bool{false, true} {
			s := open(t, db, oneWrite)
			if untold {
				if db.Driver == testdb.DriverPostgres {
					continue
				}
				s.NotReturning()
			}
			units := someUnits(9)
			units[2].Lease.Token, units[8].Lease.Token = entry.NewID(), entry.NewID() // not the storage's own
			mustAdd(t, s, units...)
			stale, gone := *units[1], *units[5]
			stale.Lease.Token = entry.NewID()
			if err := s.Remove(t.Context(), units[5]); err != nil {
				t.Fatal(err)
			}
			callers := [][]*entry.Unit{{units[0]}, {&stale}, {units[2], units[3]}, {units[4]}, {&gone}, {units[6], &stale, units[7]}, {units[8]}}
			lost := map[int]bool{1: true, 4: true, 5: true}
			errs := together(t, s.Removing(), len(callers), func(i int) error { return s.Remove(t.Context(), callers[i]...) })()
			for i, err := range errs {
				if lost[i] != errors.Is(err, txlog.ErrLeaseLost) || !lost[i] && err != nil {
					t.Errorf("caller %d: got error %v, want ErrLeaseLost: %v", i, err, lost[i])
				}
			}
			if there := missing(t, s, units...); len(there) != len(units)-1 || there[units[1].ID] {
				t.Errorf("%d of %d units are gone, want all but the one whose lease was lost", len(there), len(units))
			}
			mustAll(t, []error{s.Remove(t.Context(), units[1])})
			if n := rowCount(t, db.Open(t)); n != 0 {
				t.Errorf("%d rows were left", n)
			}
		}
	})
}

func TestCallerGivingUpBreaksNoSharedWrite(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		for _, grace := range []time.Duration{-1, time.Minute} {
			s := open(t, db.Via(p.Addr()), oneWrite, txlog.WithGrace(grace))
			// The statement is prepared for the size of the write to come.
			warm := someUnits(3)
			mustAll(t, together(t, s.Adding(), 3, func(i int) error { return s.Add(t.Context(), time.Minute, warm[i]) })())
			units := someUnits(3)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answered := make(chan error, 1)
			reached, send := p.Hold(execute)
			sent := p.Count(execute)
			wait := together(t, s.Adding(), 3, func(i int) error {
				if i != 1 {
					return s.Add(t.Context(), time.Minute, units[i])
				}
				answered <- s.Add(ctx, time.Minute, units[i])
				return nil
			})
			errs := make(chan []error, 1)
			go func() { errs <- wait() }()
			testproxy.Await(t, reached)
			cancel()
			if grace < 0 {
				if err := <-answered; !errors.Is(err, txlog.ErrInDoubt) {
					t.Errorf("got error %v, want ErrInDoubt", err)
				}
				// A caller that has stopped waiting may write to its unit.
				units[1].DataSource, units[1].Statements[0].SQL, units[1].Lease = "", "", entry.Lease{}
			}
			attempts := sent()
			send()
			mustAll(t, <-errs)
			if grace > 0 {
				if err := <-answered; err != nil {
					t.Errorf("got error %v, want none: it was written", err)
				}
			}
			if gone := missing(t, s, units...); len(gone) != 0 {
				t.Errorf("%d units are missing", len(gone))
			}
			if attempts != 1 || units[0].AddRepeated {
				t.Errorf("it was sent %d times", attempts)
			}
		}
	})
}

func TestUnansweredWriteDelaysNobodyForLong(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	p := testproxy.New(t, db.Addr())
	s := open(t, db.Via(p.Addr()), oneWrite)
	mustAdd(t, s, unit("UPDATE a"))
	reached, release := p.Hold(testproxy.MySQLExecute)
	first := make(chan error, 1)
	go func() { first <- s.Add(t.Context(), time.Hour, unit("UPDATE a")) }()
	testproxy.Await(t, reached)
	mustAdd(t, s, unit("UPDATE b"))
	select {
	case err := <-first:
		t.Errorf("the first was answered: %v", err)
	default:
	}
	release()
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestCloseWritesTheQueueAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db, oneWrite)
		units := someUnits(7)
		first := unit("UPDATE a")
		mustAdd(t, s, first)
		remove := together(t, s.Removing(), 1, func(int) error { return s.Remove(t.Context(), first) })
		add := together(t, s.Adding(), len(units), func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) })
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		for !s.Adding().Closed() {
			time.Sleep(time.Millisecond)
		}
		if err := s.Add(t.Context(), time.Hour, unit("UPDATE a")); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("got error %v, want ErrClosed", err)
		}
		select {
		case err := <-closed:
			t.Errorf("it closed with writes in its queue: %v", err)
		default:
		}
		// In SQLite they leave together, when both are let go.
		removed := make(chan []error, 1)
		go func() { removed <- remove() }()
		mustAll(t, add())
		mustAll(t, <-removed)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if gone := missing(t, open(t, db), append(units, first)...); len(gone) != 1 || !gone[first.ID] {
			t.Errorf("missing are %v, want the removed unit", gone)
		}
	})
}

// The answers to callers are true, regardless of the moments at which they give up.
func TestAnswersHoldWhenManyGiveUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		var mu sync.Mutex
		told := map[*entry.Unit]error{}
		removed := map[*entry.Unit]bool{}
		var group sync.WaitGroup
		for range 24 {
			group.Go(func() {
				for range 25 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(8*time.Millisecond))
					u := unit([]string{"UPDATE a", "UPDATE b"}[:1+rand.N(2)]...)
					err := s.Add(ctx, time.Hour, u)
					cancel()
					mu.Lock()
					told[u] = err
					mu.Unlock()
					if err != nil || rand.N(2) == 0 {
						continue
					}
					if err := s.Remove(t.Context(), u); err != nil {
						t.Error(err)
					}
					mu.Lock()
					removed[u] = true
					mu.Unlock()
				}
			})
		}
		group.Wait()
		var all []*entry.Unit
		for u := range told {
			all = append(all, u)
		}
		gone := missing(t, s, all...)
		added := 0
		for u, err := range told {
			switch {
			case err == nil:
				added++
				if gone[u.ID] != removed[u] && !u.AddRepeated {
					t.Errorf("unit %s was added, removed: %v, gone: %v", u.ID, removed[u], gone[u.ID])
				}
			case !errors.Is(err, txlog.ErrInDoubt) && !gone[u.ID]:
				t.Errorf("unit %s is there although its caller got: %v", u.ID, err)
			}
		}
		t.Logf("%d of %d units were added", added, len(told))
	})
}

func TestAFarDatabaseHasSeveralWritesInFlight(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	db := testdb.MySQL(t)
	p := testproxy.New(t, db.Addr())
	p.Delay(15*ms, 15*ms)
	s := open(t, db.Via(p.Addr()), txlog.WithMaxConns(8))
	for end := time.Now().Add(time.Minute); s.Adding().Limit() < 3; {
		if time.Now().After(end) {
			t.Fatalf("%d writes are thought worthwhile at a round trip of 30 ms, measured as %v", s.Adding().Limit(), s.RoundTrip())
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := s.Add(t.Context(), time.Hour, unit("UPDATE a")); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	if trip := s.RoundTrip(); trip < 30*ms {
		t.Errorf("the round trip was measured as %v, want at least 30 ms", trip)
	}
}

func ExampleWithWritesInFlight() {
	// Always one write of the log at a time, however far away the database is.
	s, err := txlog.Open(context.Background(), "sqlite", "file:log.db", txlog.WithWritesInFlight(1, 1))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
}
