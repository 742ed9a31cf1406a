package groups

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// The north is unreachable, so that it receives no part before the south refuses.
func TestSiblingRefusedBeforeThePartIsSentLeavesNothingToUndo(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Moves(rig.Short)
		sent := g.Proxy.Count(testproxy.Text("balance"))
		g.Proxy.Refuse()
		g.Proxy.CutAll()
		wantTurning(t, m.End(), false)
		if u := compensation(m); !u.Compensating() || u.Leased {
			t.Errorf("the compensation is %+v", u)
		}
		g.Proxy.Accept()
		finishes(g)
		g.WantUndone()
		if n := sent(); n != 0 {
			t.Errorf("the north was sent %d writes", n)
		}
		if n := g.Count("SELECT COUNT(*) FROM bed_receipt WHERE void = 1"); n != 1 {
			t.Errorf("the north has %d void receipts", n)
		}
	}, rig.NoSyncRetry)
}

// Each part is refused before it does anything: no compensation may run.
func TestEmptyCompensationRunsNothing(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		undo := m.Soft.Compensation(m.Ctx)
		for _, r := range []*rig.Rig{g.Rig, g.South} {
			m.Stage(bedsql.RequireRows(m.Ctx, 1), r.Wrapped, rig.Short, 1)
			m.Stage(undo, r.Wrapped, rig.Give, 5)
		}
		err := m.End()
		var c *bedsql.CompensatedError
		if !errors.As(err, &c) || c.TransactionID != m.Soft.ID() || strings.Count(c.Cause.Error(), "row") < 2 {
			t.Errorf("End says %v, want what both refused", err)
		}
		g.Rig.WantBalances(100)
		g.South.WantBalances(100)
		g.WantEmpty()
	})
}

// The write to the north is in flight while the group is compensated, and arrives after the end.
func TestForwardWriteThatHangsFindsTheGroupUndone(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *rig.GroupRig) {
		g.Cfg.AttemptTimeout = 5 * time.Second // long enough to come to the COMMIT, and to undo it
		g.Rig.Wrapped = g.Open(g.DB.DSN)
		g.ReceiptTable()
		commits := rig.CommitsOf(g.Proxy)
		m := group(g)
		m.Moves(rig.Short)
		reached, release := g.Proxy.Hold(commits.Match)
		t.Cleanup(release)
		err := m.End()
		select {
		case <-reached:
		default:
			t.Fatal("nothing was held")
		}
		if g.DB.Driver == testdb.DriverMySQL { // the transaction with its receipt is open until the COMMIT arrives
			wantTurning(t, err, false)
			release()
			finishes(g)
			g.WantUndone()
			return
		}
		wantCompensated(g, err)
		g.WantUndone()
		g.WantEmpty()
		before := g.Proxy.Open()
		release()
		rig.Eventually(t, "what was held has been answered", func() bool { return g.Proxy.Open() < before })
		g.WantUndone()
	}, rig.NoSyncRetry)
}

// The COMMIT of the compensation arrives, and its answer is lost.
func TestLostAnswerOfACompensationUndoesOnce(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *rig.GroupRig) {
		for _, byJob := range []bool{false, true} {
			if byJob {
				hurries(g.South)
			}
			m := group(g)
			m.Moves(rig.Short)
			if byJob {
				free := g.South.BlockTable("account")
				if err := m.End(); !errors.Is(err, bedsql.ErrPending) {
					t.Errorf("End says %v", err)
				}
				free()
			}
			undoing := false // one message is matched at a time
			lost := g.Proxy.CutAfter(func(message []byte) bool {
				undoing = undoing || testproxy.Text("SET void = 1")(message)
				return undoing && testproxy.Commit(message)
			})
			if byJob {
				finishes(g)
			} else {
				wantCompensated(g, m.End())
			}
			select {
			case <-lost:
			default:
				t.Error("no answer was lost")
			}
			g.WantEmpty()
		}
		g.WantUndone()
	}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
}

func TestDeadlineUndoesAGroupByTheJob(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		hurries(g.South)
		free := g.South.BlockRow(1)
		m := group(g, bedsql.CompensateAfter(time.Hour))
		m.Moves(rig.Give)
		err := m.End()
		if !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		var end *bedsql.EndError
		g.Rig.WantBalances(90) // delivered
		if own := g.AtHome != nil && g.HomePool == nil; errors.As(err, &end) && (len(end.Delivered) > 0) != own {
			t.Errorf("named as delivered, though the group may undo it: %v", end.Delivered)
		}
		g.LogAge(59 * time.Minute)
		job := worker(g, func(c *asyncjob.Config) { c.DeliveryTimeout = time.Second; c.MaxDeliveryTryTimes = 100 })
		if _, err := job.RunOnce(context.Background()); err != nil {
			t.Fatal(err)
		}
		if u := compensation(m); u.Compensating() {
			t.Errorf("it has turned before its time: %+v", u)
		}
		g.LogAge(time.Hour)
		rig.Eventually(t, "the group has turned", func() bool {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return compensation(m).Compensating()
		})
		free() // attempts that wait there still are applied now, and undone
		finishes(g)
		g.WantUndone()
	}, rig.NoSyncRetry)
}

// The data source of the first part delays the group beyond its deadline.
func TestDeadlineUndoesWhatIsDeliveredWhileTheRestIsOutOfReach(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *rig.GroupRig) {
		g.ReceiptTable()
		m := group(g, bedsql.CompensateAfter(time.Hour))
		m.Moves(rig.Give)
		g.Proxy.Refuse()
		g.Proxy.CutAll()
		if err := m.End(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		g.South.WantBalances(110)
		g.LogAge(time.Hour)
		job := worker(g)
		rig.Eventually(t, "the south is undone", func() bool {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.South.Balance(1) == 100
		})
		g.Proxy.Accept()
		finishes(g)
		g.WantUndone()
	}, rig.NoSyncRetry)
}

// For a pending group, End reports the state of the group: a delivered part can still be
// compensated.
func TestPendingPartIsNotDeliveredBeforeItsGroup(t *testing.T) {
	t.Parallel()
	pending := func(t *testing.T, g *rig.GroupRig) {
		g.ReceiptTable()
		north, south := g.Rig.BlockRow(1), takeRow(g.South)
		m := group(g)
		m.Moves(rig.Give)
		err := m.End()
		var end *bedsql.EndError
		if !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
			t.Fatalf("End says %v", err)
		}
		states := func(want bedsql.State) {
			t.Helper()
			for _, err := range end.Errors {
				if got, err := bedsql.Status(t.Context(), g.Storage, rig.WantPending(t, err).EntryID); got != want || err != nil {
					t.Errorf("the state is %s, %v, want %s", got, err, want)
				}
			}
		}
		states(bedsql.StateWaiting)
		north()
		job := worker(g, func(c *asyncjob.Config) { c.DeliveryTimeout = time.Second; c.MaxDeliveryTryTimes = 100 })
		rig.Eventually(t, "the north is written", func() bool {
			g.LogAge(time.Minute)
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.Rig.Balance(1) == 90
		})
		states(bedsql.StateWaiting)
		south()
		finishes(g)
		g.Rig.WantBalances(100)
		states(bedsql.StateDiscarded)
	}
	rig.EachServer(t, func(t *testing.T, db testdb.DB) { eachKindOfGroup(t, db, pending, hurried, rig.NoSyncRetry) })
}

// A deadline that passes once all is delivered changes nothing.
func TestDeadlineDoesNotUndoWhatIsDelivered(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g, bedsql.CompensateAfter(time.Millisecond))
		m.Moves(rig.Give)
		if err := m.End(); err != nil {
			t.Fatal(err)
		}
		g.WantEmpty()
		finishes(g)
		g.WantDone()
	})
}

// An operator turns the group while the write to the south waits for a lock.
func TestOperatorTurnsAGroupWhileEndRuns(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		free := g.South.BlockRow(1)
		m := group(g)
		m.Moves(rig.Give)
		ended := make(chan error, 1)
		m.Commit()
		go func() { ended <- m.Soft.End(context.Background()) }()
		rig.Eventually(t, "the north is written", func() bool { return g.Rig.Balance(1) == 90 })
		if _, err := g.Storage.Compensate(context.Background(), m.Soft.ID(), 0, "by an operator: wrong order"); err != nil {
			t.Fatal(err)
		}
		free()
		var c *bedsql.CompensatedError
		switch err := <-ended; {
		case errors.As(err, &c):
			if !strings.Contains(c.Cause.Error(), "wrong order") {
				t.Errorf("End says %v, want the operator's reason", err)
			}
		case !errors.Is(err, bedsql.ErrPending):
			t.Errorf("End says %v", err)
		}
		finishes(g)
		g.WantUndone()
	})
}

// Receipts needed only for the compensation are kept for it, regardless of their retention.
func TestReceiptsOfAGroupOutliveTheirRetention(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		hurries(g.South)
		free := g.South.BlockRow(1)
		m := group(g)
		m.Moves(rig.Give)
		if err := m.End(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		g.Rig.WantBalances(90)
		job := worker(g, func(c *asyncjob.Config) {
			c.ReceiptRetention, c.PurgeInterval, c.DeliveryTimeout, c.MaxDeliveryTryTimes = time.Millisecond, time.Millisecond, time.Second, 100
		})
		g.ReceiptsAge(24 * time.Hour)
		for range 3 {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n := g.Receipts(); n != 1 {
			t.Fatalf("%d receipts are left in the north", n)
		}
		free()
		if _, err := g.Storage.Compensate(context.Background(), m.Soft.ID(), 0, "by an operator"); err != nil {
			t.Fatal(err)
		}
		finishes(g)
		g.WantUndone()
	}, rig.NoSyncRetry, func(c *bedsql.Config) { c.ReceiptRetention = time.Minute })
}

func TestRefusedCompensationLeavesTheGroupHalfCompensated(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Moves(rig.Short)
		m.Stage(m.Soft.Compensation(m.Ctx), g.Rig.Wrapped, "INSERT INTO account VALUES (?, 0)", 1) // is there
		wantTurning(t, m.End(), true)
		u := compensation(m)
		if !u.HalfCompensated() || u.DataSource != u.Undo.Parts[0].DataSource {
			t.Errorf("the compensation is %+v", u)
		}
		g.Rig.WantBalances(90)
		g.Exec("DELETE FROM account") // what was in the way
		if err := g.Storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		finishes(g)
		g.Rig.WantBalances(0)
		g.South.WantBalances(100)
	})
}

// If the log is gone when a part is refused, End does not report a compensation.
func TestGroupWaitsForItsLogToTurn(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		g, p, _ := newGroupBehindLogProxy(t, db, func(c *bedsql.Config) { c.LogTimeout = 5 * time.Second })
		free := takeRow(g.South)
		m := group(g)
		m.Moves(rig.Give)
		ended := make(chan error, 1)
		go func() { ended <- m.End() }()
		rig.Eventually(t, "the north is written", func() bool { return g.Rig.Balance(1) == 90 })
		p.Refuse()
		p.CutAll()
		free()
		err := <-ended
		if !errors.Is(err, bedsql.ErrPending) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
			t.Errorf("End says %v", err)
		}
		p.Accept()
		finishes(g)
		g.Rig.WantBalances(100)
	})
}

// The log stops answering after all parts were delivered. End must not report them as unsent.
func TestGroupThatTheLogDoesNotConfirmIsNotReportedAsUnsent(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		g, p, _ := newGroupBehindLogProxy(t, db, func(c *bedsql.Config) { c.LogTimeout = 5 * time.Second })
		_, ended, release := endStandsBeforeRemoval(g, p)
		p.Refuse()
		p.CutAll()
		err := <-ended
		if text := fmt.Sprint(err); !errors.Is(err, bedsql.ErrPending) || !strings.Contains(text, "all of it is delivered") || strings.Contains(text, "if its entry was written") {
			t.Errorf("End says %v", err)
		}
		p.Accept()
		release()
		finishes(g)
		g.WantDone()
	})
}

// The application stalls before it completes a group. Meanwhile the group is compensated, or
// completed, without a note in bed_attempt. The receipts show it.
func TestGroupUndoneBehindAStalledEndIsNotReportedAsDelivered(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, turns := range []bool{true, false} {
			t.Run(map[bool]string{true: "undone", false: "completed by the job"}[turns], func(t *testing.T) {
				t.Parallel()
				const lease = 5 * time.Second // a removal is repeated for 10 s
				g, p, logDB := newGroupBehindLogProxy(t, rig.FreshLike(t, db), func(c *bedsql.Config) { c.Lease = lease })
				m, ended, release := endStandsBeforeRemoval(g, p)
				direct, err := txlog.Open(context.Background(), logDB.Driver, logDB.DSN)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = direct.Close() })
				g.Rig.Storage = direct
				if turns {
					if _, err := direct.Compensate(context.Background(), m.Soft.ID(), 0, "by an operator"); err != nil {
						t.Fatal(err)
					}
				}
				finishes(g)
				over := time.Now().Add(lease)
				bare := logDB.Open(t)
				if _, err := bare.Exec("DELETE FROM bed_attempt"); err != nil {
					t.Fatal(err)
				}
				rig.Eventually(t, "the lease is over", func() bool { return time.Now().After(over) })
				release()
				switch err := <-ended; {
				case turns:
					wantCompensated(g, err)
					g.WantUndone()
				case err != nil:
					t.Errorf("End says %v of a group that is delivered", err)
				default:
					g.WantDone()
				}
			})
		}
	})
}
