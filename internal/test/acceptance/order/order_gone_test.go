package order

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestKeyOfARolledBackSavepointHoldsUpNothing(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		sets := func(b *rig.Begun, key string, balance int) {
			t.Helper()
			b.Stage(bedsql.WithOrderKey(b.Ctx, key), b.Rig.Wrapped, rig.SetBalance, balance, 1)
		}
		// The first write under a key goes, and its unit with it.
		b := w.Begun()
		b.Must(b.Tx, "SAVEPOINT a")
		sets(b, "gone", 1)
		b.Must(b.Tx, "ROLLBACK TO SAVEPOINT a")
		sets(b, "other", 2)
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatalf("behind what was rolled back: %v", err)
		}
		// A write that would have to wait goes, and the one before it stays.
		first := pendingHead(w.Rig, "k", 3)
		b = w.Begun()
		sets(b, "other", 4)
		b.Must(b.Tx, "SAVEPOINT a")
		sets(b, "k", 5)
		b.Must(b.Tx, "ROLLBACK TO SAVEPOINT a")
		sets(b, "third", 6)
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatalf("behind %s, which is under the key of what was rolled back: %v", first, err)
		}
		if report := w.RunOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		w.WantBalances(3, 100)
		w.WantEmpty()
	})
}

func TestLocalTransactionDoesNotWaitForItsTurnWhileItIsOpen(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(c *bedsql.Config) { c.OrderWait = time.Minute })
		r.Account(0)
		first := pendingHead(r, "k", 1)
		under := bedsql.WithOrderKey(t.Context(), "k")
		tx, err := r.Wrapped.BeginTx(under, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		// It takes effect after the first one, which it did not see.
		if _, err := tx.ExecContext(under, r.Q("UPDATE account SET balance = ? WHERE id = 1 AND balance = 1"), 2); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func(tx *sql.Tx) { done <- tx.Commit() }(tx)
		rig.Eventually(t, "the commit waits, or has ended", func() bool {
			got, err := r.Storage.Get(t.Context(), first)
			return err == nil && got.Blocks == 1
		})
		rig.Eventually(t, "the first is delivered", func() bool {
			r.RunOnce()
			return r.Balance(1) > 0
		})
		wantBehind(r, <-done, first)
		rig.Eventually(t, "the second is delivered", func() bool {
			r.RunOnce()
			return len(r.Logs()) == 0
		})
		if got := r.Balance(1); got != 2 {
			t.Errorf("the account holds %d: the second write took effect before the first", got)
		}
	})
}

func TestSkippedEntryIsOvertakenHoweverLateItIsRetried(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		first := pendingHead(r, "k", 1)
		wantBehind(r, sets(r, t.Context(), "k", 1, 2), first)
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		// The retention is over.
		r.ExecLog("UPDATE bed_order_key SET last = 1")
		r.Exec("UPDATE bed_order SET keep_until = 1")
		r.Exec("UPDATE bed_receipt SET keep_until = 1")
		for range 3 {
			r.RunOnce() // and purges
		}
		if err := r.Storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		r.RunOnce()
		if got := r.Balance(1); got != 2 {
			t.Errorf("account 1 holds %d: an older write went back", got)
		}
	})
}

func TestDecisionFreesTheNextThoughTheTablesCameLater(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		r.ExecLog("ALTER TABLE bed_order_key RENAME TO elsewhere")
		early, err := txlog.Open(t.Context(), r.LogDB.Driver, r.LogDB.DSN, txlog.WithoutCreate())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = early.Close() }()
		r.ExecLog("ALTER TABLE elsewhere RENAME TO bed_order_key")
		first := pendingHead(r, "k", 1)
		wantBehind(r, sets(r, t.Context(), "k", 1, 2), first)
		if err := early.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 || r.Balance(1) != 2 {
			t.Fatalf("the job reports %+v", report)
		}
		r.WantNoLog()
	})
}

// A transaction of WithTx locks its keys by its COMMIT alone.
func TestCommitWithAKeyHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), func(c *bedsql.Config) { c.AttemptTimeout, c.RetryTimeout = rig.Patience, 2*rig.Patience })
		p := testproxy.New(t, w.HomeDB.Addr())
		p.SpareErasing()
		w.Home = w.Open(w.HomeDB.Via(p.Addr()).DSN)
		tgt := rig.TargetOf(t, w.DB)
		u := &entry.Unit{ID: entry.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings, Order: []entry.Order{{Key: orderKey(w.Rig, "k")}},
			Statements: []entry.Statement{{SQL: w.Q(rig.SetBalance)}}}
		u.Receipt = u.ID
		if err := w.Storage.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		b := w.Begun()
		b.Stage(bedsql.WithOrderKey(b.Ctx, "k"), b.Rig.Wrapped, rig.SetBalance, 1, 1)
		answered := func(what string, f func() error) {
			t.Helper()
			done := make(chan error, 1)
			go func() { done <- f() }()
			select {
			case err := <-done:
				if err == nil {
					t.Errorf("%s: it was possible", what)
				}
			case <-time.After(rig.Patience):
				t.Fatalf("%s: no answer while a COMMIT is on its way", what)
			}
		}
		if _, err := logdb.Of(w.Storage).Decide(t.Context(), entry.DecideRetry, []string{u.ID}, nil, nil); !errors.Is(err, txlog.ErrLeased) {
			t.Errorf("before the COMMIT, a decision says %v", err) // it has not waited for the key
		}
		reached, release := p.Hold(testproxy.Commit)
		committed := make(chan error, 1)
		go func() { committed <- b.Tx.Commit() }()
		<-reached
		answered("a removal", func() error { return w.Storage.Remove(t.Context(), u) })
		if err := w.Storage.Release(t.Context(), u, entry.Verdict{Park: true}); err != nil {
			t.Fatal(err)
		}
		answered("a decision", func() error { return w.Storage.Discard(t.Context(), u.ID) })
		release()
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		if err := w.Storage.Discard(t.Context(), u.ID); err != nil {
			t.Fatal(err)
		}
		if err := b.End(); !errors.Is(err, bedsql.ErrPending) { // it was behind the other at its COMMIT
			t.Fatal(err)
		}
		w.Delivers()
		w.WantEmpty()
	})
}

// An entry deleted by hand does not block its key, even if there are no further writes under it.
func TestJobFreesWhatWaitsBehindADeletedEntry(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		first := pendingHead(w.Rig, "k", 3)
		second := wantBehind(w.Rig, sets(w.Rig, t.Context(), "k", 1, 4), first).EntryID
		alone := pendingHead(w.Rig, "alone", 3)
		w.ExecLog("DELETE FROM transaction_log WHERE id IN ('" + first + "', '" + alone + "')")
		b := w.Begun()
		b.Stage(bedsql.WithOrderKey(b.Ctx, "k"), b.Rig.Wrapped, rig.SetBalance, 5, 1)
		b.Commit()
		wantBehind(w.Rig, b.End(), first)
		if report := w.RunOnce(); report.Delivered != 2 {
			t.Fatalf("the job reports %+v; %s waits", report, second)
		}
		w.WantBalances(5, 100)
		w.WantEmpty()
		b = w.Begun()
		b.Stage(bedsql.WithOrderKey(b.Ctx, "alone"), b.Rig.Wrapped, rig.SetBalance, 6, 1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("the next of WithTx under the other key: %v", err)
		}
		w.WantBalances(6, 100)
	})
}
