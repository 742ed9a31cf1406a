package txlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestSharedUnansweredWriteIsRecoveredForAll(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		direct := db.Open(t)
		for _, cut := range []func(func([]byte) bool) <-chan struct{}{p.CutAfter, p.CutBefore} {
			s := open(t, db.Via(p.Addr()), oneWrite)
			units := someUnits(6)
			rows := 1 + 2 + 3 + 1 + 2 + 3
			struck := cut(execute)
			mustAll(t, together(t, s.Adding(), 6, func(i int) error { return s.Add(t.Context(), time.Minute, units[i]) })())
			testproxy.Await(t, struck)
			if n := rowCount(t, direct); n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
			// The unit held by another owner is lost, regardless of the answer.
			stale := *units[3]
			stale.Lease.Token = entry.NewID()
			struck = cut(execute)
			errs := together(t, s.Removing(), 6, func(i int) error {
				if i == 3 {
					return s.Remove(t.Context(), &stale)
				}
				return s.Remove(t.Context(), units[i])
			})()
			testproxy.Await(t, struck)
			for i, err := range errs {
				if (i == 3) != errors.Is(err, txlog.ErrLeaseLost) || i != 3 && err != nil {
					t.Errorf("removal %d: got error %v", i, err)
				}
			}
			mustAll(t, []error{s.Remove(t.Context(), units[3])})
			if n := rowCount(t, direct); n != 0 {
				t.Errorf("%d rows were left", n)
			}
		}
	})
}

func TestSharedSQLiteWriteIsRecoveredForAll(t *testing.T) {
	t.Parallel()
	s, lose, direct := openLossy(t, "lossy-joined", errors.New("connection reset by peer"))
	units := someUnits(6)
	lose.Store(3)
	mustAll(t, together(t, s.Adding(), 6, func(i int) error { return s.Add(t.Context(), time.Minute, units[i]) })())
	if n := rowCount(t, direct); n != 12 || lose.Load() >= 0 {
		t.Errorf("%d rows, want 12; %d answers were not lost", n, lose.Load()+1)
	}
	stale := *units[3]
	stale.Lease.Token = entry.NewID()
	units[3] = &stale
	lose.Store(3)
	errs := together(t, s.Removing(), 6, func(i int) error { return s.Remove(t.Context(), units[i]) })()
	for i, err := range errs {
		if (i == 3) != errors.Is(err, txlog.ErrLeaseLost) || i != 3 && err != nil {
			t.Errorf("removal %d: got error %v", i, err)
		}
	}
	if n := rowCount(t, direct); n != 1 {
		t.Errorf("%d rows, want the one whose lease was lost", n)
	}
}

func TestRefusedRecordInARepeatLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		s := open(t, db.Via(p.Addr()), oneWrite, txlog.WithGrace(50*time.Millisecond))
		refuse(t, db, "refused")
		units := someUnits(4)
		units[1].DataSource = "refused"
		struck := p.CutBefore(execute)
		ctx := testproxy.Until(t, struck, 500*time.Millisecond)
		errs := together(t, s.Adding(), 4, func(i int) error {
			if i == 1 {
				return s.Add(ctx, time.Minute, units[i])
			}
			return s.Add(t.Context(), time.Minute, units[i])
		})()
		testproxy.Await(t, struck)
		for i, err := range errs {
			if i != 1 && err != nil || i == 1 && !errors.Is(err, txlog.ErrInDoubt) {
				t.Errorf("caller %d: got error %v", i, err)
			}
		}
	})
}

func TestExpiredMemberIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	s, lose, direct := openLossy(t, "lossy-member", errors.New("connection reset by peer"))
	units := []*entry.Unit{unit("UPDATE a"), unit("UPDATE b"), unit("UPDATE c")}
	lose.Store(1 << 30)
	wait := together(t, s.Adding(), 3, func(i int) error {
		if i > 0 {
			return s.Add(t.Context(), time.Minute, units[i])
		}
		err := s.Add(t.Context(), 200*time.Millisecond, units[0])
		if !errors.Is(err, txlog.ErrInDoubt) {
			t.Errorf("got error %v, want ErrInDoubt", err)
		}
		// This imitates a delivery by the job.
		if _, err := direct.Exec("DELETE FROM transaction_log WHERE id = '" + units[0].ID + "'"); err != nil {
			t.Error(err)
		}
		lose.Store(0)
		return nil
	})
	mustAll(t, wait())
	if gone := missing(t, s, units...); len(gone) != 1 || !gone[units[0].ID] {
		t.Errorf("missing are %v, want the unit whose lease ended", gone)
	}
}

func TestUnitRecordsThatALateAddMayReturn(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool) {
		for _, callers := range []int{1, 2} {
			s := open(t, db.Via(p.Addr()), oneWrite, txlog.WithGrace(12*time.Second))
			warm, units := someUnits(callers), someUnits(callers)
			mustAll(t, together(t, s.Adding(), callers, func(i int) error { return s.Add(t.Context(), time.Minute, warm[i]) })())
			if err := s.Remove(t.Context(), warm...); err != nil || warm[0].AddRepeated {
				t.Fatalf("got %v; repeated: %v", err, warm[0].AddRepeated)
			}
			ctx, cancel := context.WithCancel(t.Context())
			reached, send := p.Hold(execute)
			wait := together(t, s.Adding(), callers, func(i int) error { return s.Add(ctx, time.Minute, units[i]) })
			errs := make(chan []error, 1)
			go func() { errs <- wait() }()
			testproxy.Await(t, reached)
			cancel()
			mustAll(t, <-errs)
			for _, u := range units {
				if !u.AddRepeated {
					t.Error("an attempt that was not answered is not reported")
				}
			}
			if err := s.Remove(t.Context(), units...); err != nil {
				t.Fatal(err)
			}
			// The network releases the message.
			send()
			for end := time.Now().Add(time.Minute); len(missing(t, s, units...)) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the attempt did not arrive")
				}
			}
			mustAll(t, []error{s.Remove(t.Context(), units...)})
		}
	})
}
