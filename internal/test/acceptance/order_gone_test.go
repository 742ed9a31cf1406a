package acceptance

import (
	"database/sql"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestKeyOfARolledBackSavepointHoldsUpNothing(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		sets := func(b *begun, key string, balance int) {
			t.Helper()
			b.stage(bedsql.WithOrderKey(b.ctx, key), b.rig.wrapped, setBalance, balance, 1)
		}
		// The first write under a key goes, and its unit with it.
		b := w.begun()
		b.must(b.tx, "SAVEPOINT a")
		sets(b, "gone", 1)
		b.must(b.tx, "ROLLBACK TO SAVEPOINT a")
		sets(b, "other", 2)
		b.commit()
		if err := b.end(); err != nil {
			t.Fatalf("behind what was rolled back: %v", err)
		}
		// A write that would have to wait goes, and the one before it stays.
		first := w.pendingHead("k", 3)
		b = w.begun()
		sets(b, "other", 4)
		b.must(b.tx, "SAVEPOINT a")
		sets(b, "k", 5)
		b.must(b.tx, "ROLLBACK TO SAVEPOINT a")
		sets(b, "third", 6)
		b.commit()
		if err := b.end(); err != nil {
			t.Fatalf("behind %s, which is under the key of what was rolled back: %v", first, err)
		}
		if report := w.runOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		w.wantBalances(3, 100)
		w.wantEmpty()
	})
}

func TestLocalTransactionDoesNotWaitForItsTurnWhileItIsOpen(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, func(c *bedsql.Config) { c.OrderWait = time.Minute })
		r.account(0)
		first := r.pendingHead("k", 1)
		under := bedsql.WithOrderKey(t.Context(), "k")
		tx, err := r.wrapped.BeginTx(under, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		// It takes effect after the first one, which it did not see.
		if _, err := tx.ExecContext(under, r.q("UPDATE account SET balance = ? WHERE id = 1 AND balance = 1"), 2); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func(tx *sql.Tx) { done <- tx.Commit() }(tx)
		eventually(t, "the commit waits, or has ended", func() bool {
			got, err := r.storage.Get(t.Context(), first)
			return err == nil && got.Blocks == 1
		})
		eventually(t, "the first is delivered", func() bool {
			r.runOnce()
			return r.balance(1) > 0
		})
		r.wantBehind(<-done, first)
		eventually(t, "the second is delivered", func() bool {
			r.runOnce()
			return len(r.logs()) == 0
		})
		if got := r.balance(1); got != 2 {
			t.Errorf("the account holds %d: the second write took effect before the first", got)
		}
	})
}

func TestSkippedEntryIsOvertakenHoweverLateItIsRetried(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		first := r.pendingHead("k", 1)
		r.wantBehind(r.sets(t.Context(), "k", 1, 2), first)
		if _, err := r.storage.Decide(t.Context(), txlog.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		// The retention is over.
		r.execLog("UPDATE bed_order_key SET last = 1")
		r.exec("UPDATE bed_order SET keep_until = 1")
		r.exec("UPDATE bed_receipt SET keep_until = 1")
		for range 3 {
			r.runOnce() // and purges
		}
		if err := r.storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		r.runOnce()
		if got := r.balance(1); got != 2 {
			t.Errorf("account 1 holds %d: an older write went back", got)
		}
	})
}

func TestDecisionFreesTheNextThoughTheTablesCameLater(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		r.execLog("ALTER TABLE bed_order_key RENAME TO elsewhere")
		early, err := txlog.Open(t.Context(), r.logDB.Driver, r.logDB.DSN, txlog.WithoutCreate())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = early.Close() }()
		r.execLog("ALTER TABLE elsewhere RENAME TO bed_order_key")
		first := r.pendingHead("k", 1)
		r.wantBehind(r.sets(t.Context(), "k", 1, 2), first)
		if err := early.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 || r.balance(1) != 2 {
			t.Fatalf("the job reports %+v", report)
		}
		r.wantNoLog()
	})
}

func TestOpenTransactionWithAKeyHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		w := newWith(t, db, false)
		tgt := targetOf(t, w.db)
		u := &txlog.Unit{ID: txlog.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings, Order: []txlog.Order{{Key: w.orderKey("k")}},
			Statements: []txlog.Statement{{SQL: w.q(setBalance)}}}
		u.Receipt = u.ID
		if err := w.storage.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		b := w.begun()
		b.stage(bedsql.WithOrderKey(b.ctx, "k"), b.rig.wrapped, setBalance, 1, 1)
		answered := func(what string, f func() error) {
			t.Helper()
			done := make(chan error, 1)
			go func() { done <- f() }()
			select {
			case err := <-done:
				if err == nil {
					t.Errorf("%s: it was possible", what)
				}
			case <-time.After(patience):
				t.Fatalf("%s: no answer while a transaction is open", what)
			}
		}
		answered("a removal", func() error { return w.storage.Remove(t.Context(), u) })
		if err := w.storage.Release(t.Context(), u, txlog.Verdict{Park: true}); err != nil {
			t.Fatal(err)
		}
		answered("a decision", func() error { return w.storage.Discard(t.Context(), u.ID) })
		b.commit()
		if err := w.storage.Discard(t.Context(), u.ID); err != nil {
			t.Fatal(err)
		}
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		w.wantEmpty()
	})
}

// An entry deleted by hand does not block its key, even if there are no further writes under it.
func TestJobFreesWhatWaitsBehindADeletedEntry(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		first := w.pendingHead("k", 3)
		second := w.wantBehind(w.sets(t.Context(), "k", 1, 4), first).EntryID
		alone := w.pendingHead("alone", 3)
		w.execLog("DELETE FROM transaction_log WHERE id IN ('" + first + "', '" + alone + "')")
		b := w.begun()
		b.stage(bedsql.WithOrderKey(b.ctx, "k"), b.rig.wrapped, setBalance, 5, 1)
		b.commit()
		w.wantBehind(b.end(), first)
		if report := w.runOnce(); report.Delivered != 2 {
			t.Fatalf("the job reports %+v; %s waits", report, second)
		}
		w.wantBalances(5, 100)
		w.wantEmpty()
		b = w.begun()
		b.stage(bedsql.WithOrderKey(b.ctx, "alone"), b.rig.wrapped, setBalance, 6, 1)
		b.commit()
		if err := b.end(); err != nil {
			t.Errorf("the next of WithTx under the other key: %v", err)
		}
		w.wantBalances(6, 100)
	})
}
