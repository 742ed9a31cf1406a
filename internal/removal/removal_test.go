package removal

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

func TestRemovalAfterReturnWaitsAtMostItsBound(t *testing.T) {
	removes(t, time.Minute, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.add(t, 1)
		time.Sleep(Within - time.Millisecond)
		r.add(t, 2)
		r.wantRemovals(t)
		time.Sleep(time.Millisecond)
		r.wantRemovals(t, removal{Within, 3})
		r.add(t, 1) // the queue had ended
		time.Sleep(Within)
		r.wantRemovals(t, removal{Within, 3}, removal{2 * Within, 1})
	})
}

func TestFullBatchOfRemovalsLeavesAtOnce(t *testing.T) {
	removes(t, time.Minute, queued, func(t *testing.T, r *rig) {
		r.add(t, Batch)
		r.wantRemovals(t, removal{0, Batch})
		r.add(t, Batch+7) // while that is under way
		close(r.log.gate)
		r.wantRemovals(t, removal{0, Batch}, removal{0, Batch})
		time.Sleep(Within)
		r.wantRemovals(t, removal{0, Batch}, removal{0, Batch}, removal{Within, 7})
	})
}

func TestCloseRemovesAtOnceWhatWaitsForOthers(t *testing.T) {
	removes(t, time.Minute, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.add(t, 3)
		time.Sleep(time.Millisecond)
		r.Close(t.Context())
		r.wantRemovals(t, removal{time.Millisecond, 3})
		r.wantErased(t, 3)
	})
}

func TestShortLeaseIsKeptWhileWaitingForOthers(t *testing.T) {
	removes(t, Within/2, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.add(t, 1)
		time.Sleep(Within - time.Millisecond)
		if logs, err := r.log.List(t.Context(), txlog.Filter{}); err != nil || len(logs) != 1 || !logs[0].Leased {
			t.Errorf("after two leases the log holds %+v, %v", logs, err)
		}
		time.Sleep(time.Millisecond)
		r.wantRemovals(t, removal{Within, 1})
	})
}

func TestCallerRemovesItsEntryWhenTooManyWait(t *testing.T) {
	removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
		r.add(t, Batch)
		r.wantRemovals(t, removal{0, Batch})
		r.add(t, Most)
		go r.add(t, 1)
		r.wantRemovals(t, removal{0, Batch}, removal{0, 1})
		close(r.log.gate)
	})
}

func TestDelivererWaitsForARepeatedBatchOnRequest(t *testing.T) {
	removes(t, time.Hour, held, func(t *testing.T, r *rig) {
		until := time.Now().Add(1500 * time.Millisecond)
		r.log.fails = func([]*entry.Unit) error {
			if time.Now().Before(until) {
				return errDown
			}
			return nil
		}
		close(r.log.gate)
		for _, token := range []string{"a", "b"} { // a batch of what was claimed at two times
			r.add(t, 5, func(d *delivered) { d.Entry.Lease.Token = token })
		}
		synctest.Wait()
		token := func(d *delivered) { d.Entry.Lease.Token = "c" }
		r.add(t, 10, token)
		r.add(t, 1, token)
		if waited := time.Since(r.log.begun); waited != 2*time.Second {
			t.Errorf("the next one waits for %v", waited)
		}
		time.Sleep(Within)
		r.wantRemovals(t, removal{0, 10}, removal{time.Second, 10}, removal{2 * time.Second, 10},
			removal{2 * time.Second, 10}, removal{2*time.Second + Within, 1})
		r.wantErased(t, 21)
		r.wantFailed(t)
	})
}

func TestUnremovableHeldBatchIsLeftAtTheEnd(t *testing.T) {
	removes(t, time.Hour, held, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.log.fails = func([]*entry.Unit) error { return errDown }
		r.add(t, 5, func(d *delivered) { d.Entry.Lease.Token = "a" })
		time.Sleep(2 * time.Minute)
		r.wantFailed(t, "5 left")
		r.wantErased(t, 0)
	})
}

func TestLogPanicEndsTheUnitsOfItsBatch(t *testing.T) {
	removes(t, time.Hour, held, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.log.fails = func([]*entry.Unit) error { panic("log") }
		r.add(t, 5)
		time.Sleep(time.Minute)
		r.wantErased(t, 0)
	})
}

// If the lease ends while a removal is repeated, the unit belongs to someone else.
func TestRemovalIsRepeatedOnlyDuringItsLease(t *testing.T) {
	for name, change := range map[string]func(*rig, Config){"queued": queued, "held": held} {
		t.Run(name, func(t *testing.T) {
			removes(t, 2500*time.Millisecond, change, func(t *testing.T, r *rig) {
				close(r.log.gate)
				r.log.mute, r.log.fails = true, func([]*entry.Unit) error { return errDown }
				r.add(t, 1)
				time.Sleep(time.Minute)
				if synctest.Wait(); r.all[0].ended[0] != "lost" {
					t.Errorf("it has ended as %q", r.all[0].ended)
				}
				if n := len(r.log.removals); n != 3 {
					t.Errorf("it was tried %d times, want 3", n)
				}
				if last := r.failed[len(r.failed)-1]; last != "1 left" {
					t.Errorf("told last is %q", last)
				}
				r.wantErased(t, 0)
			})
		})
	}
}

func TestUnremovableUnitDoesNotKeepOthers(t *testing.T) {
	removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		var locked atomic.Bool
		locked.Store(true)
		r.log.fails = func(units []*entry.Unit) error {
			if locked.Load() && slices.ContainsFunc(units, func(u *entry.Unit) bool { return u.ID == r.all[1].Entry.ID }) {
				return errDown
			}
			return nil
		}
		r.add(t, 3)
		time.Sleep(Within)
		r.wantFailed(t, "1 repeated")
		if n := r.left(t); n != 1 {
			t.Errorf("%d entries are left, want 1", n)
		}
		locked.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := r.left(t); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		time.Sleep(EraseWithin)
		r.wantErased(t, 3)
	})
}

// An open transaction of WithTx keeps only entries under its own order keys.
func TestUnremovableOrderKeyDoesNotKeepOthersInTheirBatch(t *testing.T) {
	removes(t, time.Hour, held, func(t *testing.T, r *rig) {
		close(r.log.gate)
		var locked atomic.Bool
		locked.Store(true)
		r.log.fails = func(units []*entry.Unit) error {
			if locked.Load() && slices.ContainsFunc(units, func(u *entry.Unit) bool { return len(u.Order) > 0 && u.Order[0].Key == entry.OrderPrefix+"locked" }) {
				return errDown
			}
			return nil
		}
		under := func(key string) func(*delivered) {
			return func(d *delivered) { d.Entry.Order = []entry.Order{{Key: entry.OrderPrefix + key}} }
		}
		r.add(t, 1, under("locked"))
		r.add(t, 1, under("other"))
		r.add(t, 25)
		time.Sleep(time.Minute / 2)
		synctest.Wait()
		if n := r.left(t); n != 1 {
			t.Errorf("%d entries are left, want 1", n)
		}
		locked.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := r.left(t); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		r.wantFailed(t)
	})
}

func TestReceiptIsErasedOnlyOnceUnneeded(t *testing.T) {
	removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		for _, change := range []func(*delivered){
			func(d *delivered) { d.Entry.Receipt = "" },
			func(d *delivered) { d.Entry.Fingerprint = "of a request" },
			func(d *delivered) { d.Entry.AddRepeated = true },
			func(d *delivered) { d.Certain = false },
			func(d *delivered) { // somebody else owns it
				r.log.fails = func([]*entry.Unit) error { return &entry.LeaseLostError{IDs: []string{d.Entry.ID}} }
			},
			func(d *delivered) { d.Entry.Settings, d.Entry.Receipt = "a=1", "erased" },
		} {
			r.add(t, 1, change)
		}
		time.Sleep(Within + EraseWithin)
		synctest.Wait()
		if got := fmt.Sprint(r.erased); got != "map[{a=1 }:[erased]]" {
			t.Errorf("erased is %s", got)
		}
		if got := r.all[4].ended; !slices.Equal(got, []string{"lost"}) {
			t.Errorf("the unit of somebody else has ended as %q", got)
		}
	})
}

func TestReceiptsWithoutEntriesAreErasedWithTheOthers(t *testing.T) {
	removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.add(t, 1)
		time.Sleep(Within)
		synctest.Wait()
		r.End(&deliver(&entry.Unit{Receipt: "r"}).Unit)
		time.Sleep(EraseWithin - time.Millisecond)
		r.wantErased(t, 0)
		time.Sleep(time.Millisecond)
		r.wantErased(t, 2)
	})
}

func TestReceiptsErasedInTurnWaitUntilClose(t *testing.T) {
	removes(t, time.Hour, inTurn, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.add(t, 2)
		time.Sleep(time.Minute)
		r.wantErased(t, 0)
		if few, ids := r.Receipts(3), r.Receipts(2); few != nil || len(ids) != 2 {
			t.Errorf("taken are %v and %v", few, ids)
		}
		r.add(t, 1)
		time.Sleep(time.Minute)
		r.Close(t.Context())
		r.wantErased(t, 1)
	})
}

func TestARemovalOutlivesTheContextOfItsCaller(t *testing.T) {
	removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		close(r.log.gate)
		id := entry.NewID()
		d := deliver(&entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}})
		if err := r.log.Add(t.Context(), time.Minute, d.Entry); err != nil {
			t.Fatal(err)
		}
		r.Now(ctx, &d.Unit)
		if n := r.left(t); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// The context of Close is the bound. After its end, waiting removals are not tried one after the
// other.
func TestCloseLeavesUnansweredRemovalsToTheJob(t *testing.T) {
	removes(t, 30*time.Second, queued, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.log.silent = true
		r.add(t, Most)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		r.Close(ctx)
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("it took %v and %d removals, want about the 5 s that it was given", took, len(r.log.removals))
		}
	})
}

// unanswered has the first removal made, and not answered.
func (r *rig) unanswered() {
	first := true
	r.log.fails = func(units []*entry.Unit) error {
		if !first {
			return nil
		}
		first = false
		if err := r.log.Memory.Remove(context.Background(), units...); err != nil {
			return err
		}
		return fmt.Errorf("%w: no answer", txlog.ErrInDoubt)
	}
}

func (r *rig) wantAllEnded(t *testing.T, how string) {
	t.Helper()
	synctest.Wait()
	for i, d := range r.all {
		if !slices.Equal(d.ended, []string{how}) {
			t.Errorf("unit %d has ended as %q, want %s", i, d.ended, how)
		}
	}
}

func TestUnansweredRemovalLosesNothing(t *testing.T) {
	for name, change := range map[string]func(*rig, Config){"held": held, "queued": queued} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				removes(t, time.Hour, change, func(t *testing.T, r *rig) {
					close(r.log.gate)
					r.unanswered()
					r.add(t, n, func(d *delivered) { d.Entry.Lease.Token = "a" })
					time.Sleep(5 * time.Second)
					r.wantAllEnded(t, "ended")
					r.wantErased(t, n)
				})
			})
		}
	}
}

func TestEntryGoneAfterItsLeaseIsLost(t *testing.T) {
	removes(t, 500*time.Millisecond, held, func(t *testing.T, r *rig) {
		close(r.log.gate)
		r.log.mute = true
		r.unanswered()
		r.add(t, 3, func(d *delivered) { d.Entry.Lease.Token = "a" })
		time.Sleep(5 * time.Second)
		r.wantAllEnded(t, "lost")
		r.wantErased(t, 0)
	})
}

// Without a lease, only an answer shows that the unit was not taken by another owner.
func TestUntakenUnitKeepsItsReceiptWithoutAnswer(t *testing.T) {
	for name, erased := range map[string]int{"answered": 1, "unanswered": 0} {
		t.Run(name, func(t *testing.T) {
			removes(t, time.Hour, queued, func(t *testing.T, r *rig) {
				close(r.log.gate)
				id := entry.NewID()
				d := deliver(&entry.Unit{ID: id, DataSource: "orders", Receipt: id, Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}})
				if err := r.log.Add(t.Context(), time.Hour, d.Entry); err != nil {
					t.Fatal(err)
				}
				d.Entry.Lease.Deadline = time.Time{}
				d.Lease = r.leases.KeepUntaken(d.Entry, time.Now().Add(time.Minute))
				if erased == 0 {
					r.unanswered()
				}
				r.Later(t.Context(), &d.Unit)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if want := map[int]string{0: "lost", 1: "ended"}[erased]; len(d.ended) != 1 || d.ended[0] != want {
					t.Errorf("it has ended as %q", d.ended)
				}
				r.wantErased(t, erased)
			})
		})
	}
}
