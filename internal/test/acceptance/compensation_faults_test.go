package acceptance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// The north is unreachable, so that it receives no part before the south refuses.
func TestSiblingRefusedBeforeThePartIsSentLeavesNothingToUndo(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.moves(short)
		sent := g.proxy.Count(testproxy.Text("balance"))
		g.proxy.Refuse()
		g.proxy.CutAll()
		wantTurning(t, m.end(), false)
		if u := m.compensation(); !u.Compensating() || u.Leased {
			t.Errorf("the compensation is %+v", u)
		}
		g.proxy.Accept()
		g.finishes()
		g.wantUndone()
		if n := sent(); n != 0 {
			t.Errorf("the north was sent %d writes", n)
		}
		if n := g.count("SELECT COUNT(*) FROM bed_receipt WHERE void = 1"); n != 1 {
			t.Errorf("the north has %d void receipts", n)
		}
	}, noSyncRetry)
}

// Each part is refused before it does anything: no compensation may run.
func TestEmptyCompensationRunsNothing(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		undo := m.soft.Compensation(m.ctx)
		for _, r := range []*rig{g.rig, g.south} {
			m.stage(bedsql.RequireRows(m.ctx, 1), r.wrapped, short, 1)
			m.stage(undo, r.wrapped, give, 5)
		}
		err := m.end()
		var c *bedsql.CompensatedError
		if !errors.As(err, &c) || c.TransactionID != m.soft.ID() || strings.Count(c.Cause.Error(), "row") < 2 {
			t.Errorf("End says %v, want what both refused", err)
		}
		g.rig.wantBalances(100)
		g.south.wantBalances(100)
		g.wantEmpty()
	})
}

// The write to the north is in flight while the group is compensated, and arrives after the end.
func TestForwardWriteThatHangsFindsTheGroupUndone(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *groupRig) {
		g.cfg.AttemptTimeout = 5 * time.Second // long enough to come to the COMMIT, and to undo it
		g.rig.wrapped = g.open(g.db.DSN)
		g.receiptTable()
		commits := commitsOf(g.proxy)
		m := g.group()
		m.moves(short)
		reached, release := g.proxy.Hold(commits.match)
		t.Cleanup(release)
		err := m.end()
		select {
		case <-reached:
		default:
			t.Fatal("nothing was held")
		}
		if testdb.MySQLPath() { // the transaction with its receipt is open until the COMMIT arrives
			wantTurning(t, err, false)
			release()
			g.finishes()
			g.wantUndone()
			return
		}
		g.wantCompensated(err)
		g.wantUndone()
		g.wantEmpty()
		before := g.proxy.Open()
		release()
		eventually(t, "what was held has been answered", func() bool { return g.proxy.Open() < before })
		g.wantUndone()
	}, noSyncRetry)
}

// The COMMIT of the compensation arrives, and its answer is lost.
func TestLostAnswerOfACompensationUndoesOnce(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *groupRig) {
		for _, byJob := range []bool{false, true} {
			if byJob {
				g.south.hurries()
			}
			m := g.group()
			m.moves(short)
			if byJob {
				free := g.south.blockTable("account")
				if err := m.end(); !errors.Is(err, bedsql.ErrPending) {
					t.Errorf("End says %v", err)
				}
				free()
			}
			undoing := false // one message is matched at a time
			lost := g.proxy.CutAfter(func(message []byte) bool {
				undoing = undoing || testproxy.Text("SET void = 1")(message)
				return undoing && testproxy.Commit(message)
			})
			if byJob {
				g.finishes()
			} else {
				g.wantCompensated(m.end())
			}
			select {
			case <-lost:
			default:
				t.Error("no answer was lost")
			}
			g.wantEmpty()
		}
		g.wantUndone()
	}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
}

func TestDeadlineUndoesAGroupByTheJob(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		g.south.hurries()
		free := g.south.blockRow(1)
		m := g.group(bedsql.CompensateAfter(time.Hour))
		m.moves(give)
		err := m.end()
		if !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		var end *bedsql.EndError
		g.rig.wantBalances(90) // delivered
		if own := g.atHome != nil && g.homePool == nil; errors.As(err, &end) && (len(end.Delivered) > 0) != own {
			t.Errorf("named as delivered, though the group may undo it: %v", end.Delivered)
		}
		g.logAge(59 * time.Minute)
		job := g.worker(func(c *asyncjob.Config) { c.DeliveryTimeout = time.Second; c.MaxDeliveryTryTimes = 100 })
		if _, err := job.RunOnce(context.Background()); err != nil {
			t.Fatal(err)
		}
		if u := m.compensation(); u.Compensating() {
			t.Errorf("it has turned before its time: %+v", u)
		}
		g.logAge(time.Hour)
		eventually(t, "the group has turned", func() bool {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return m.compensation().Compensating()
		})
		free() // attempts that wait there still are applied now, and undone
		g.finishes()
		g.wantUndone()
	}, noSyncRetry)
}

// The data source of the first part delays the group beyond its deadline.
func TestDeadlineUndoesWhatIsDeliveredWhileTheRestIsOutOfReach(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *groupRig) {
		g.receiptTable()
		m := g.group(bedsql.CompensateAfter(time.Hour))
		m.moves(give)
		g.proxy.Refuse()
		g.proxy.CutAll()
		if err := m.end(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		g.south.wantBalances(110)
		g.logAge(time.Hour)
		job := g.worker()
		eventually(t, "the south is undone", func() bool {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.south.balance(1) == 100
		})
		g.proxy.Accept()
		g.finishes()
		g.wantUndone()
	}, noSyncRetry)
}

// For a pending group, End reports the state of the group: a delivered part can still be
// compensated.
func TestPendingPartIsNotDeliveredBeforeItsGroup(t *testing.T) {
	t.Parallel()
	pending := func(t *testing.T, g *groupRig) {
		g.receiptTable()
		north, south := g.rig.blockRow(1), g.south.takeRow()
		m := g.group()
		m.moves(give)
		err := m.end()
		var end *bedsql.EndError
		if !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
			t.Fatalf("End says %v", err)
		}
		states := func(want bedsql.State) {
			t.Helper()
			for _, err := range end.Errors {
				if got, err := bedsql.Status(t.Context(), g.storage, wantPending(t, err).EntryID); got != want || err != nil {
					t.Errorf("the state is %s, %v, want %s", got, err, want)
				}
			}
		}
		states(bedsql.StateWaiting)
		north()
		job := g.worker(func(c *asyncjob.Config) { c.DeliveryTimeout = time.Second; c.MaxDeliveryTryTimes = 100 })
		eventually(t, "the north is written", func() bool {
			g.logAge(time.Minute)
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.rig.balance(1) == 90
		})
		states(bedsql.StateWaiting)
		south()
		g.finishes()
		g.rig.wantBalances(100)
		states(bedsql.StateDiscarded)
	}
	eachServer(t, func(t *testing.T, db testdb.DB) { eachKindOfGroup(t, db, pending, hurried, noSyncRetry) })
}

// A deadline that passes once all is delivered changes nothing.
func TestDeadlineDoesNotUndoWhatIsDelivered(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group(bedsql.CompensateAfter(time.Millisecond))
		m.moves(give)
		if err := m.end(); err != nil {
			t.Fatal(err)
		}
		g.wantEmpty()
		g.finishes()
		g.wantDone()
	})
}

// An operator turns the group while the write to the south waits for a lock.
func TestOperatorTurnsAGroupWhileEndRuns(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		free := g.south.blockRow(1)
		m := g.group()
		m.moves(give)
		ended := make(chan error, 1)
		m.commit()
		go func() { ended <- m.soft.End(context.Background()) }()
		eventually(t, "the north is written", func() bool { return g.rig.balance(1) == 90 })
		if _, err := g.storage.Compensate(context.Background(), m.soft.ID(), 0, "by an operator: wrong order"); err != nil {
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
		g.finishes()
		g.wantUndone()
	})
}

// Receipts needed only for the compensation are kept for it, regardless of their retention.
func TestReceiptsOfAGroupOutliveTheirRetention(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		g.south.hurries()
		free := g.south.blockRow(1)
		m := g.group()
		m.moves(give)
		if err := m.end(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		g.rig.wantBalances(90)
		job := g.worker(func(c *asyncjob.Config) {
			c.ReceiptRetention, c.PurgeInterval, c.DeliveryTimeout, c.MaxDeliveryTryTimes = time.Millisecond, time.Millisecond, time.Second, 100
		})
		g.receiptsAge(24 * time.Hour)
		for range 3 {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n := g.receipts(); n != 1 {
			t.Fatalf("%d receipts are left in the north", n)
		}
		free()
		if _, err := g.storage.Compensate(context.Background(), m.soft.ID(), 0, "by an operator"); err != nil {
			t.Fatal(err)
		}
		g.finishes()
		g.wantUndone()
	}, noSyncRetry, func(c *bedsql.Config) { c.ReceiptRetention = time.Minute })
}

func TestRefusedCompensationLeavesTheGroupHalfCompensated(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.moves(short)
		m.stage(m.soft.Compensation(m.ctx), g.rig.wrapped, "INSERT INTO account VALUES (?, 0)", 1) // is there
		wantTurning(t, m.end(), true)
		u := m.compensation()
		if !u.HalfCompensated() || u.DataSource != u.Undo.Parts[0].DataSource {
			t.Errorf("the compensation is %+v", u)
		}
		g.rig.wantBalances(90)
		g.exec("DELETE FROM account") // what was in the way
		if err := g.storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		g.finishes()
		g.rig.wantBalances(0)
		g.south.wantBalances(100)
	})
}

// If the log is gone when a part is refused, End does not report a compensation.
func TestGroupWaitsForItsLogToTurn(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		g, p, _ := newGroupBehindLogProxy(t, db, func(c *bedsql.Config) { c.LogTimeout = 5 * time.Second })
		free := g.south.takeRow()
		m := g.group()
		m.moves(give)
		ended := make(chan error, 1)
		go func() { ended <- m.end() }()
		eventually(t, "the north is written", func() bool { return g.rig.balance(1) == 90 })
		p.Refuse()
		p.CutAll()
		free()
		err := <-ended
		if !errors.Is(err, bedsql.ErrPending) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
			t.Errorf("End says %v", err)
		}
		p.Accept()
		g.finishes()
		g.rig.wantBalances(100)
	})
}

// The log stops answering after all parts were delivered. End must not report them as unsent.
func TestGroupThatTheLogDoesNotConfirmIsNotReportedAsUnsent(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		g, p, _ := newGroupBehindLogProxy(t, db, func(c *bedsql.Config) { c.LogTimeout = 5 * time.Second })
		_, ended, release := g.endStandsBeforeRemoval(p)
		p.Refuse()
		p.CutAll()
		err := <-ended
		if text := fmt.Sprint(err); !errors.Is(err, bedsql.ErrPending) || !strings.Contains(text, "all of it is delivered") || strings.Contains(text, "if its entry was written") {
			t.Errorf("End says %v", err)
		}
		p.Accept()
		release()
		g.finishes()
		g.wantDone()
	})
}

// The application stalls before it completes a group. Meanwhile the group is compensated, or
// completed, without a note in bed_attempt. The receipts show it.
func TestGroupUndoneBehindAStalledEndIsNotReportedAsDelivered(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, turns := range []bool{true, false} {
			t.Run(map[bool]string{true: "undone", false: "completed by the job"}[turns], func(t *testing.T) {
				t.Parallel()
				const lease = 5 * time.Second // a removal is repeated for 10 s
				g, p, logDB := newGroupBehindLogProxy(t, freshLike(t, db), func(c *bedsql.Config) { c.Lease = lease })
				m, ended, release := g.endStandsBeforeRemoval(p)
				direct, err := txlog.Open(context.Background(), logDB.Driver, logDB.DSN)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = direct.Close() })
				g.rig.storage = direct
				if turns {
					if _, err := direct.Compensate(context.Background(), m.soft.ID(), 0, "by an operator"); err != nil {
						t.Fatal(err)
					}
				}
				g.finishes()
				over := time.Now().Add(lease)
				bare := logDB.Open(t)
				if _, err := bare.Exec("DELETE FROM bed_attempt"); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the lease is over", func() bool { return time.Now().After(over) })
				release()
				switch err := <-ended; {
				case turns:
					g.wantCompensated(err)
					g.wantUndone()
				case err != nil:
					t.Errorf("End says %v of a group that is delivered", err)
				default:
					g.wantDone()
				}
			})
		}
	})
}
