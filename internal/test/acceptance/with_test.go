package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestEntriesOfWithCommitWithTheRows(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		first, second := b.records(1), b.records(1)
		other := b.stage(b.ctx, b.rig.wrapped, setBalance, 7, 2)
		wantResult(t, first, bedsql.ErrStaged)
		if n := w.left(); n != 0 {
			t.Errorf("before the COMMIT others see %d entries", n)
		}
		w.wantBalances(100, 100)
		b.commit()
		if n := w.left(); n != 3 {
			t.Errorf("the COMMIT wrote %d statements, want those of the stock alone", n)
		}
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		for _, res := range []sql.Result{first, second, other} {
			wantRows(t, res, 1)
		}
		w.wantBalances(102, 7)
		w.wantEmpty()
		if n := w.atHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestRollbackTakesTheEntriesOfWithAlong(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		res := b.records(1)
		if err := b.tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		err, outcome := b.end(), bedsql.OutcomeNotAccepted
		if !w.seen {
			outcome = bedsql.OutcomeUnknown
		}
		if err == nil || !strings.Contains(err.Error(), "rolled back") || bedsql.OutcomeOf(err) != outcome {
			t.Errorf("End says %v (%v), want %v", err, bedsql.OutcomeOf(err), outcome)
		}
		if _, err := res.RowsAffected(); err == nil {
			t.Error("the write has a result")
		}
		if r := w.delivers(); r.Claimed != 0 {
			t.Errorf("the job found %v", r)
		}
		w.wantBalances(100, 100)
		if n := w.atHome(); n != 100 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestRollbackToDropsJustItsOwnEntries(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		savepoint := func(text string) { b.must(b.tx, text) }
		savepoint("SAVEPOINT sp0")
		b.records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp0") // also of the first one
		kept := b.records(1)
		savepoint("SAVEPOINT sp1") // as gorm writes it
		dropped := b.records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp1")
		again := b.records(1)
		savepoint("SAVEPOINT sp2")
		last := b.records(2)
		savepoint("ROLLBACK TO SAVEPOINT sp2")
		b.commit()
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		wantRows(t, kept, 1)
		wantRows(t, again, 1)
		wantResult(t, dropped, bedsql.ErrStaged)
		wantResult(t, last, bedsql.ErrStaged)
		w.wantBalances(102, 100)
		w.wantEmpty()
	})
}

func TestJobDeliversWithoutEndAtOnce(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		b.records(1)
		b.records(1)
		if r := w.delivers(); r.Claimed != 0 {
			t.Errorf("before the COMMIT the job found %v", r)
		}
		b.commit()
		if r := w.delivers(); r.Delivered != 1 {
			t.Errorf("the job reports %v", r)
		}
		w.wantBalances(102, 100)
		w.wantEmpty()
	})
}

func TestEndAfterTheJobAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.records(1)
		b.commit()
		w.delivers()
		err := b.end()
		switch known := w.seen || w.exactlyOnce(); {
		case known && err != nil, !known && !errors.Is(err, bedsql.ErrUnknownOutcome):
			t.Errorf("End says %v", err)
		}
		w.wantBalances(101, 100)
		w.wantEmpty()
	})
}

// A session goes on after its COMMIT, and does not tell that it was one.
func TestEndOfWithOnAConnectionBelievesTheReceipt(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if w.seen {
			return
		}
		conn, err := w.home.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		w.must(conn, "BEGIN")
		b := w.with(nil, conn)
		b.records(1)
		w.must(conn, "COMMIT")
		w.delivers()
		switch err := b.end(); {
		case w.exactlyOnce() && err != nil, !w.exactlyOnce() && (!errors.Is(err, bedsql.ErrUnknownOutcome) || errors.Is(err, bedsql.ErrNotCommitted)):
			t.Errorf("End says %v", err)
		}
		w.wantBalances(101, 100)
		w.wantEmpty()
	})
}

// taken is a log whose entries the job has taken when End asks for them, and delivers before
// End looks again.
type taken struct {
	*txlog.SQLStorage
	delivers func()
	lost     atomic.Bool
}

func (s *taken) Renew(ctx context.Context, lease time.Duration, units ...*txlog.Unit) ([]*txlog.Unit, error) {
	if s.delivers != nil && !s.lost.Swap(true) {
		return units, nil
	}
	return s.SQLStorage.Renew(ctx, lease, units...)
}

func (s *taken) Get(ctx context.Context, id string) (*txlog.Unit, error) {
	if f := s.delivers; f != nil && s.lost.Load() {
		s.delivers = nil
		f()
	}
	return s.SQLStorage.Get(ctx, id)
}

// A receipt that was not there before the entry was gone says nothing.
func TestEndAsksForTheReceiptOnceTheEntryIsGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log := &taken{}
		w := newWith(t, db, false, exactlyOnce, func(c *bedsql.Config) { log.SQLStorage, c.Storage = c.Storage.(*txlog.SQLStorage), log })
		b := w.begun()
		b.takes()
		b.records(1)
		b.commit()
		delivered := false
		log.delivers = func() { delivered = w.delivers().Delivered == 1 }
		if err := b.end(); err != nil || !delivered {
			t.Errorf("End says %v of what the job has delivered: %v", err, delivered)
		}
		w.wantBalances(101, 100)
		w.wantEmpty()
	})
}

func TestEndBeforeCommitLeavesItToTheJob(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		b.records(1)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		wantNotCommitted(t, b.soft.End(ctx))
		if ctx.Err() != nil {
			t.Error("End took longer than its context")
		}
		w.wantBalances(100, 100)
		b.commit()
		w.delivers()
		w.wantBalances(101, 100)
		w.wantEmpty()
	})
}

func TestWithNeedsNoLeaseWhileItRuns(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.records(1)
		b.commit()
		w.logAge(time.Hour) // as if it had been long ago
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		w.wantBalances(101, 100)
		w.wantEmpty()
	})
}

func TestLocalTransactionInsideWithJoinsAtItsCommit(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		inner, err := w.rig.wrapped.BeginTx(b.ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.must(inner, increment, 1, 1)
		w.must(inner, increment, 1, 2)
		if err := inner.Commit(); err != nil {
			t.Fatal(err)
		}
		dropped, err := w.rig.wrapped.BeginTx(b.ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.must(dropped, increment, 1, 1)
		if err := dropped.Rollback(); err != nil {
			t.Fatal(err)
		}
		b.commit()
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		w.wantBalances(101, 101)
		w.wantEmpty()
	})
}

func TestWithRefusesWritesToItsOwnDatabase(t *testing.T) {
	t.Parallel()
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t)} {
		w := newWith(t, db, true)
		b := w.begun()
		if _, err := w.home.ExecContext(b.ctx, w.q(increment), 1, 1); err == nil || !strings.Contains(err.Error(), "send it through that transaction") {
			t.Errorf("a write through the pool says %v", err)
		}
		if _, err := b.tx.ExecContext(b.ctx, w.q(increment), 1, 1); err != nil { // it is the transaction itself
			t.Error(err)
		}
		b.records(1)
		if _, err := w.home.ExecContext(b.ctx, w.q(increment), 1, 1); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("a second write through the pool says %v", err)
		}
		b.commit()
		if err := b.end(); err != nil {
			t.Error(err)
		}
		if n := w.atHome(); n != 101 {
			t.Errorf("account 1 holds %d", n)
		}
		w.wantBalances(101, 100)
	}
}

func TestRefusedWriteOfWithIsParked(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.takes()
		b.stage(b.ctx, b.rig.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 1) // is there
		b.commit()
		err := b.end()
		var end *bedsql.EndError
		if !errors.As(err, &end) || len(end.Refused()) != 1 || len(end.Delivered) != 1 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
			t.Fatalf("End says %v (%v), delivered %v", err, bedsql.OutcomeOf(err), end)
		}
		if u := w.wantOneLog(); !u.Parked {
			t.Errorf("the entry is %+v", u)
		}
	})
}

func TestRequiredRowsHoldForEntriesOfWith(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		for _, byJob := range []bool{false, true} {
			b := w.begun()
			b.takes()
			b.records(2)
			b.stage(bedsql.RequireRows(b.ctx, 1), b.rig.wrapped, "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= 1000", 1, 1)
			b.commit()
			if byJob {
				if r := w.delivers(); r.Parked != 1 {
					t.Errorf("the job reports %v", r)
				}
				continue
			}
			var rows *bedsql.RowsError
			if err := b.end(); !errors.As(err, &rows) || rows.Want != 1 || rows.Got != 0 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
				t.Errorf("End says %v", err)
			}
		}
		w.wantBalances(100, 100)
		for _, u := range w.logs() {
			if !u.Parked || !strings.Contains(u.LastError, "row") {
				t.Errorf("the log holds %+v", u)
			}
		}
	})
}

// A first delivery that meets a duplicate key has not been made before.
func TestJobDoesNotTakeDuplicateForDelivery(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.stage(b.ctx, b.rig.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 1)
		b.commit()
		if r := w.delivers(); r.Parked != 1 {
			t.Errorf("the job reports %v", r)
		}
	})
}

func TestDiscardRemovesNothingThatWithCommitted(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		b := w.begun()
		b.records(1)
		b.soft.Discard()
		if _, err := w.rig.wrapped.ExecContext(b.ctx, w.q(increment), 1, 1); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("a write after it says %v", err)
		}
		b.commit()
		if err := b.end(); bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Errorf("End says %v", err)
		}
		w.delivers()
		w.wantBalances(101, 100)
	})
}

func TestWithKeepsTextsOfEveryKind(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		w.exec("CREATE TABLE words (id INT PRIMARY KEY, word VARCHAR(100) NOT NULL)")
		all := []string{"plain", `it's "quoted" \ and \' escaped`, "Grüße, 世界 🍎", "two\nlines\tand a tab", "what? $1 :x @y"}
		b := w.begun()
		for i, word := range all {
			b.stage(b.ctx, b.rig.wrapped, "INSERT INTO words VALUES (?, ?) /* "+strings.ReplaceAll(word, "?", "")+" */", i, word)
		}
		b.commit()
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		for i, word := range all {
			var got string
			if err := w.rig.bare.QueryRow(w.q("SELECT word FROM words WHERE id = ?"), i).Scan(&got); err != nil || got != word {
				t.Errorf("%q arrived as %q, %v", word, got, err)
			}
		}
	})
}

func TestWithWantsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWith(t, testdb.SQLite(t), false)
	for name, tx := range map[string]bedsql.DBTX{"nil": nil, "a nil transaction": (*sql.Tx)(nil), "a pool": w.home} {
		if _, _, err := bedsql.Begin(context.Background(), bedsql.WithTx(tx)); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("%s: Begin says %v", name, err)
		}
	}
}
