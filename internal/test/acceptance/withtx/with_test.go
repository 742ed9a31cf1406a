package withtx

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestEntriesOfWithCommitWithTheRows(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		first, second := b.Records(1), b.Records(1)
		other := b.Stage(b.Ctx, b.Rig.Wrapped, rig.SetBalance, 7, 2)
		rig.WantResult(t, first, bedsql.ErrStaged)
		if n := w.Left(); n != 0 {
			t.Errorf("before the COMMIT others see %d entries", n)
		}
		w.WantBalances(100, 100)
		b.Commit()
		if n := w.Left(); n != 3 {
			t.Errorf("the COMMIT wrote %d statements, want those of the stock alone", n)
		}
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		for _, res := range []sql.Result{first, second, other} {
			rig.WantRows(t, res, 1)
		}
		w.WantBalances(102, 7)
		w.WantEmpty()
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestRollbackTakesTheEntriesOfWithAlong(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		res := b.Records(1)
		if err := b.Tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) || bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		if _, err := res.RowsAffected(); err == nil {
			t.Error("the write has a result")
		}
		if r := w.Delivers(); r.Claimed != 0 {
			t.Errorf("the job found %v", r)
		}
		w.WantBalances(100, 100)
		if n := w.AtHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestRollbackToDropsJustItsOwnEntries(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		savepoint := func(text string) { b.Must(b.Tx, text) }
		savepoint("SAVEPOINT sp0")
		b.Records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp0") // also of the first one
		kept := b.Records(1)
		savepoint("SAVEPOINT sp1") // as gorm writes it
		dropped := b.Records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp1")
		again := b.Records(1)
		savepoint("SAVEPOINT sp2")
		last := b.Records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp2")
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		rig.WantRows(t, kept, 1)
		rig.WantRows(t, again, 1)
		rig.WantResult(t, dropped, bedsql.ErrStaged)
		rig.WantResult(t, last, bedsql.ErrStaged)
		w.WantBalances(102, 100)
		w.WantEmpty()
	})
}

func TestJobDeliversWithoutEndAtOnce(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		b.Records(1)
		b.Records(1)
		if r := w.Delivers(); r.Claimed != 0 {
			t.Errorf("before the COMMIT the job found %v", r)
		}
		b.Commit()
		if r := w.Delivers(); r.Delivered != 1 {
			t.Errorf("the job reports %v", r)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
	})
}

func TestEndAfterTheJobAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		b.Commit()
		w.Delivers()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
	})
}

// taken is a log whose entries the job has taken when End asks for them, and delivers before
// End looks again.
type taken struct {
	*txlog.SQLStorage
	delivers func()
	lost     atomic.Bool
}

func (s *taken) Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) ([]*entry.Unit, error) {
	if s.delivers != nil && !s.lost.Swap(true) {
		return units, nil
	}
	return s.SQLStorage.Renew(ctx, lease, units...)
}

func (s *taken) Get(ctx context.Context, id string) (*entry.Unit, error) {
	if f := s.delivers; f != nil && s.lost.Load() {
		s.delivers = nil
		f()
	}
	return s.SQLStorage.Get(ctx, id)
}

// A receipt that was not there before the entry was gone says nothing. After a COMMIT without an
// answer End takes a lease.
func TestEndAsksForTheReceiptOnceTheEntryIsGone(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		log := &taken{}
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.ExactlyOnce, func(c *bedsql.Config) { log.SQLStorage, c.Storage = c.Storage.(*txlog.SQLStorage), log })
		p := behindProxy(w)
		b := w.Begun()
		takes(b)
		b.Records(1)
		p.CutAfter(testproxy.Commit)
		if err := b.Tx.Commit(); err == nil {
			t.Error("Commit succeeded")
		}
		delivered := false
		log.delivers = func() { delivered = w.Delivers().Delivered == 1 }
		if err := b.End(); err != nil || !delivered {
			t.Errorf("End says %v of what the job has delivered: %v", err, delivered)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
	})
}

func TestEndBeforeCommitLeavesItToTheJob(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		b.Records(1)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		wantNotCommitted(t, b.Soft.End(ctx))
		if ctx.Err() != nil {
			t.Error("End took longer than its context")
		}
		w.WantBalances(100, 100)
		b.Commit()
		w.Delivers()
		w.WantBalances(101, 100)
		w.WantEmpty()
	})
}

func TestWithNeedsNoLeaseWhileItRuns(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		b.Commit()
		w.LogAge(time.Hour) // as if it had been long ago
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
	})
}

func TestLocalTransactionInsideWithJoinsAtItsCommit(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		inner, err := w.Rig.Wrapped.BeginTx(b.Ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Must(inner, rig.Increment, 1, 1)
		w.Must(inner, rig.Increment, 1, 2)
		if err := inner.Commit(); err != nil {
			t.Fatal(err)
		}
		dropped, err := w.Rig.Wrapped.BeginTx(b.Ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Must(dropped, rig.Increment, 1, 1)
		if err := dropped.Rollback(); err != nil {
			t.Fatal(err)
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		w.WantBalances(101, 101)
		w.WantEmpty()
	})
}

func TestWithRefusesWritesToItsOwnDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		b := w.Begun()
		if _, err := w.Home.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); err == nil || !strings.Contains(err.Error(), "send it through that transaction") {
			t.Errorf("a write through the pool says %v", err)
		}
		if _, err := b.Tx.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); err != nil { // it is the transaction itself
			t.Error(err)
		}
		b.Records(1)
		if _, err := w.Home.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("a second write through the pool says %v", err)
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Error(err)
		}
		if n := w.AtHome(); n != 101 {
			t.Errorf("account 1 holds %d", n)
		}
		w.WantBalances(101, 100)
	})
}

func TestRefusedWriteOfWithIsParked(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		b.Stage(b.Ctx, b.Rig.Wrapped, "INSERT INTO account VALUES (?, ?)", 1, 1) // is there
		b.Commit()
		err := b.End()
		var end *bedsql.EndError
		if !errors.As(err, &end) || len(end.Refused()) != 1 || len(end.Delivered) != 1 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
			t.Fatalf("End says %v (%v), delivered %v", err, bedsql.OutcomeOf(err), end)
		}
		if u := w.WantOneLog(); !u.Parked {
			t.Errorf("the entry is %+v", u)
		}
	})
}

func TestRequiredRowsHoldForEntriesOfWith(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		for _, byJob := range []bool{false, true} {
			b := w.Begun()
			takes(b)
			b.Records(2)
			b.Stage(bedsql.RequireRows(b.Ctx, 1), b.Rig.Wrapped, "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= 1000", 1, 1)
			b.Commit()
			if byJob {
				if r := w.Delivers(); r.Parked != 1 {
					t.Errorf("the job reports %v", r)
				}
				continue
			}
			var rows *bedsql.RowsError
			if err := b.End(); !errors.As(err, &rows) || rows.Want != 1 || rows.Got != 0 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
				t.Errorf("End says %v", err)
			}
		}
		w.WantBalances(100, 100)
		for _, u := range w.Logs() {
			if !u.Parked || !strings.Contains(u.LastError, "row") {
				t.Errorf("the log holds %+v", u)
			}
		}
	})
}

// A first delivery that meets a duplicate key has not been made before.
func TestJobDoesNotTakeDuplicateForDelivery(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Stage(b.Ctx, b.Rig.Wrapped, "INSERT INTO account VALUES (?, ?)", 1, 1)
		b.Commit()
		if r := w.Delivers(); r.Parked != 1 {
			t.Errorf("the job reports %v", r)
		}
	})
}

func TestDiscardRemovesNothingThatWithCommitted(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		b.Records(1)
		b.Soft.Discard()
		if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("a write after it says %v", err)
		}
		b.Commit()
		if err := b.End(); bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Errorf("End says %v", err)
		}
		w.Delivers()
		w.WantBalances(101, 100)
	})
}

func TestWithKeepsTextsOfEveryKind(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		w.Exec("CREATE TABLE words (id INT PRIMARY KEY, word VARCHAR(100) NOT NULL)")
		all := []string{"plain", `it's "quoted" \ and \' escaped`, "Grüße, 世界 🍎", "two\nlines\tand a tab", "what? $1 :x @y"}
		b := w.Begun()
		for i, word := range all {
			b.Stage(b.Ctx, b.Rig.Wrapped, "INSERT INTO words VALUES (?, ?) /* "+strings.ReplaceAll(word, "?", "")+" */", i, word)
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		for i, word := range all {
			var got string
			if err := w.Rig.Bare.QueryRow(w.Q("SELECT word FROM words WHERE id = ?"), i).Scan(&got); err != nil || got != word {
				t.Errorf("%q arrived as %q, %v", word, got, err)
			}
		}
	})
}

func TestWithWantsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		bare, err := w.Bare.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = bare.Rollback() }()
		ended, err := w.Home.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := ended.Commit(); err != nil {
			t.Fatal(err)
		}
		conn, err := w.Home.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for name, tx := range map[string]bedsql.DBTX{
			"nil": nil, "a nil transaction": (*sql.Tx)(nil), "a pool": w.Home, "a connection without one": conn, "a bare driver's": bare, "one that has ended": ended,
		} {
			if _, _, err := bedsql.Begin(context.Background(), bedsql.WithTx(tx)); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
				t.Errorf("%s: Begin says %v", name, err)
			}
		}
	})
}
