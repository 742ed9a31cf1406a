package order

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// secretKey is an order key that no error may show.
const secretKey = "customer jane.doe@example.org"

// sets sets the balance of an account under an order key.
func sets(r *rig.Rig, ctx context.Context, key string, id, balance int) error {
	_, err := r.Wrapped.ExecContext(bedsql.WithOrderKey(ctx, key), r.Q(rig.SetBalance), balance, id)
	return err
}

// orderKey is an order key of the rig's target in the form of the log and the target. Versions of
// bed running side by side must agree on it.
func orderKey(r *rig.Rig, key string) string {
	return r.OrderKeyOf(rig.TargetOf(r.T, r.DB).DataSource, key)
}

// pendingHead leaves a write under the key in the log, which sets account 1 and was never
// sent.
func pendingHead(r *rig.Rig, key string, balance int) (id string) {
	r.T.Helper()
	tgt := rig.TargetOf(r.T, r.DB)
	params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: int64(balance)}, {Ordinal: 2, Value: int64(1)}})
	if err != nil {
		r.T.Fatal(err)
	}
	u := &entry.Unit{ID: entry.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings, Order: []entry.Order{{Key: orderKey(r, key)}},
		Statements: []entry.Statement{{SQL: r.Q(rig.SetBalance), Params: params}}}
	u.Receipt = attempt.ReceiptID(tgt.Dialect, u.ID)
	if err := r.Storage.Add(context.Background(), time.Minute, u); err != nil || u.Behind != "" {
		r.T.Fatalf("behind %q, %v", u.Behind, err)
	}
	if err := r.Storage.Release(context.Background(), u, entry.Verdict{}); err != nil {
		r.T.Fatal(err)
	}
	return u.ID
}

func wantBehind(r *rig.Rig, err error, entry string) *bedsql.PendingError {
	r.T.Helper()
	p := r.WantPending(err)
	var behind *bedsql.BehindError
	if !errors.As(err, &behind) || behind.Entry != entry || strings.Contains(err.Error(), "jane") || !strings.Contains(err.Error(), entry) {
		r.T.Fatalf("got %v, want one that waits for %s", err, entry)
	}
	return p
}

func TestWritesUnderAnOrderKeyAreDeliveredInTheirOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0, 0)
		first := pendingHead(r, secretKey, 1)
		second := wantBehind(r, sets(r, t.Context(), secretKey, 1, 2), first).EntryID
		wantBehind(r, sets(r, t.Context(), secretKey, 1, 3), first)
		if err := sets(r, t.Context(), "another", 2, 7); err != nil {
			t.Fatalf("a write under another key: %v", err)
		}
		if got, err := r.Storage.Get(t.Context(), second); err != nil || got.Behind != first || got.Receipt == "" {
			t.Fatalf("got %+v (%v)", got, err)
		}
		if got, err := r.Storage.Get(t.Context(), first); err != nil || got.Blocks != 2 {
			t.Fatalf("got %+v (%v)", got, err)
		}
		if report := r.RunOnce(); report.Delivered != 3 {
			t.Fatalf("the job reports %+v", report)
		}
		if got := r.Balance(1); got != 3 {
			t.Errorf("account 1 holds %d, want what came last", got)
		}
		r.WantNoLog()
		if err := sets(r, t.Context(), secretKey, 1, 4); err != nil || r.Balance(1) != 4 {
			t.Errorf("the next write under the key: %v", err)
		}
		r.WantNoLog()
	})
}

func TestParkedEntryIsSkippedAndItsLateRetryIsOvertaken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		first := pendingHead(r, "k", 1)
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecidePark, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		wantBehind(r, sets(r, t.Context(), "k", 1, 2), first)
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Fatalf("the job reports %+v", report)
		}
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		if err := sets(r, t.Context(), "k", 1, 3); err != nil {
			t.Fatalf("beside a skipped entry: %v", err)
		}
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecideSkip, []string{first}, nil, nil); !errors.Is(err, txlog.ErrNotFirst) {
			t.Fatalf("skipped twice: %v", err)
		}
		if err := r.Storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Parked != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		if got := r.WantOneLog(); !got.Parked || !strings.Contains(got.LastError, dialect.ErrOvertaken.Error()) {
			t.Fatalf("got %+v", got)
		}
		if got := r.Balance(1); got != 3 {
			t.Errorf("account 1 holds %d: an older write went back", got)
		}
		if err := r.Storage.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := sets(r, t.Context(), "k", 1, 4); err != nil {
			t.Fatal(err)
		}
		r.WantNoLog()
	})
}

func TestSkippedEntryIsAppliedWhileNothingHasOvertakenIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		first := pendingHead(r, "k", 1)
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Delivered != 1 || r.Balance(1) != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		r.WantNoLog()
	})
}

func TestOrderWaitRunsTheWriteInItsTurn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(c *bedsql.Config) { c.OrderWait = time.Minute })
		r.Account(0)
		first := pendingHead(r, "k", 1)
		done := make(chan error, 1)
		go func() { done <- sets(r, context.Background(), "k", 1, 2) }()
		blocks := func(entry string) {
			t.Helper()
			rig.Eventually(t, "another waits", func() bool {
				got, err := r.Storage.Get(t.Context(), entry)
				return err == nil && got.Blocks == 1
			})
		}
		blocks(first)
		if err := r.Storage.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || r.Balance(1) != 2 {
			t.Fatalf("got %v", err)
		}
		r.WantNoLog()
		again := pendingHead(r, "k", 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { done <- sets(r, ctx, "k", 1, 4) }()
		blocks(again)
		cancel()
		wantBehind(r, <-done, again)
	})
}

func TestLocalTransactionsAndStagedGroupsKeepTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0, 0)
		both := func(balance int, begin context.Context, commit func(tx *sql.Tx) error) error {
			tx, err := r.Wrapped.BeginTx(begin, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			for id := 1; id <= 2; id++ {
				if _, err := tx.ExecContext(begin, r.Q(rig.SetBalance), balance, id); err != nil {
					return err
				}
			}
			return commit(tx)
		}
		commit := func(tx *sql.Tx) error { return tx.Commit() }
		under := bedsql.WithOrderKey(t.Context(), "k")
		if err := both(1, under, commit); err != nil || r.Balance(2) != 1 {
			t.Fatalf("a local transaction: %v", err)
		}
		r.WantNoLog()
		first := pendingHead(r, "k", 2)
		wantBehind(r, both(3, under, commit), first)
		if r.Balance(2) != 1 {
			t.Fatal("a local transaction that waits was applied")
		}
		if err := both(9, under, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(under, "UPDATE account SET balance = balance + 1 WHERE id = 1"); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil {
				return err
			}
			if _, err := tx.ExecContext(under, r.Q(rig.SetBalance), n, 2); err != nil {
				return err
			}
			return tx.Commit()
		}); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Fatalf("a transaction that must not be run again and would have to wait: %v", err)
		}
		if _, err := r.Wrapped.ExecContext(bedsql.WithOrderKey(t.Context(), ""), r.Q(rig.SetBalance), 1, 1); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("an empty key: %v", err)
		}
		if err := both(9, t.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(under, r.Q(rig.SetBalance), 9, 1)
			return err
		}); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("a transaction begun without the key: %v", err)
		}
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		for id, key := range []string{"k", "other"} {
			if _, err := r.Wrapped.ExecContext(bedsql.WithOrderKey(ctx, key), r.Q(rig.SetBalance), 4, id+1); err != nil {
				t.Fatal(err)
			}
		}
		wantBehind(r, soft.End(t.Context()), first)
		if report := r.RunOnce(); report.Delivered != 3 || r.Balance(1) != 4 || r.Balance(2) != 4 {
			t.Fatalf("the job reports %+v, the accounts hold %d and %d", report, r.Balance(1), r.Balance(2))
		}
		r.WantNoLog()
	})
}

// No statement of a local transaction escapes the order key that the transaction has.
func TestOrderKeyHoldsWhereATransactionWouldRunUnlogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		under := bedsql.WithOrderKey(t.Context(), "k")
		conn, err := r.Wrapped.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		pins := testdb.By[string]{MySQL: "SET @a = 1", Postgres: "CREATE TEMP TABLE a (n INT)", SQLite: "CREATE TEMP TABLE a (n INT)"}.For(db.Driver)
		if _, err := conn.ExecContext(t.Context(), pins); err != nil {
			t.Fatal(err)
		}
		tx, err := conn.BeginTx(under, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(rig.AddOne); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("on a pinned connection: %v", err)
		}
		_ = tx.Rollback()
		if db.Driver != testdb.DriverPostgres {
			return
		}
		if tx, err = r.Wrapped.BeginTx(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(under, rig.AddOne); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("PREPARE TRANSACTION 'a'"); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("PREPARE TRANSACTION: %v", err)
		}
		_ = tx.Rollback()
		r.WantBalances(0)
	})
}

// The own rows of a transaction of WithTx have no entry that could wait for their turn.
func TestOwnRowsOfWithUnderAnOrderKeyAreRefused(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if !w.ExactlyOnce() {
			return
		}
		for _, first := range []bool{true, false} {
			tx, err := w.Home.BeginTx(bedsql.WithOrderKey(context.Background(), "k"), nil)
			if err != nil {
				t.Fatal(err)
			}
			own := func() error {
				_, err := tx.ExecContext(context.Background(), w.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
				return err
			}
			if first {
				err = own()
			}
			b := w.With(tx, tx)
			b.Records(1)
			if first {
				err = errors.Join(err, tx.Commit())
			} else {
				err = own()
				_ = tx.Rollback()
			}
			if !errors.Is(err, bedsql.ErrOrderUnusable) {
				t.Errorf("sent first %v: it says %v", first, err)
			}
			if n := w.AtHome(); n != 100 || w.Left() != 0 {
				t.Errorf("account 1 holds %d, the log %d entries", n, w.Left())
			}
		}
	})
}

func TestWithKeepsTheOrderOfItsKeys(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		set := func(b *rig.Begun, key string, balance int) {
			t.Helper()
			b.Stage(bedsql.WithOrderKey(b.Ctx, key), b.Rig.Wrapped, rig.SetBalance, balance, 1)
		}
		b := w.Begun()
		set(b, "k", 1)
		set(b, "other", 2)
		if err := b.Tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		first := pendingHead(w.Rig, "k", 3) // a rollback leaves nothing in its way
		b = w.Begun()
		set(b, "other", 4)
		b.Records(2)
		set(b, "k", 5)
		b.Commit()
		wantBehind(w.Rig, b.End(), first)
		if report := w.Delivers(); report.Claimed != 0 { // the first is too young
			t.Fatalf("the job reports %+v", report)
		}
		wantBehind(w.Rig, sets(w.Rig, t.Context(), "k", 1, 6), first)
		if report := w.RunOnce(); report.Delivered != 3 {
			t.Fatalf("the job reports %+v", report)
		}
		w.WantBalances(6, 101)
		b = w.Begun()
		set(b, "k", 7)
		b.Commit()
		if err := b.End(); err != nil {
			t.Fatal(err)
		}
		w.WantBalances(7, 101)
		w.WantEmpty()
		if err := sets(w.Rig, t.Context(), "k", 1, 8); err != nil {
			t.Fatal(err)
		}
	})
}

// Of a key that nothing is under any more both tables forget. One under which an entry was
// skipped keeps its fence, however old: the entry may still be retried.
func TestJobForgetsIdleOrderKeysAndKeepsTheFenceOfSkippedEntries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		first := pendingHead(r, "skipped", 1)
		if _, err := logdb.Of(r.Storage).Decide(t.Context(), entry.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		for i, key := range []string{"skipped", "idle"} {
			if err := sets(r, t.Context(), key, 1, 2+i); err != nil {
				t.Fatal(err)
			}
		}
		r.WantLeft(1)
		log := r.LogDB.Open(t)
		rows := func(key string, want int) {
			t.Helper()
			for table, pool := range map[string]*sql.DB{"bed_order": r.Bare, "bed_order_key": log} {
				var n int
				if err := pool.QueryRow("SELECT COUNT(*) FROM " + table + " WHERE id = '" + orderKey(r, key) + "'").Scan(&n); err != nil || n != want {
					t.Errorf("%s has %d rows of the key %s, %v; want %d", table, n, key, err, want)
				}
			}
		}
		r.RunOnce()
		rows("idle", 1)
		const long = 2 * attempt.DefaultRetention
		r.Exec(fmt.Sprintf("UPDATE bed_order SET keep_until = keep_until - %d", long.Milliseconds()))
		if _, err := log.Exec(fmt.Sprintf("UPDATE bed_order_key SET last = last - %d", long.Microseconds())); err != nil {
			t.Fatal(err)
		}
		r.RunOnce()
		r.RunOnce()
		rows("idle", 0)
		rows("skipped", 1)
		if err := r.Storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.RunOnce(); report.Parked != 1 || r.Balance(1) != 3 {
			t.Fatalf("the job reports %+v, the account holds %d: an older write went back", report, r.Balance(1))
		}
		if err := sets(r, t.Context(), "idle", 1, 4); err != nil || r.Balance(1) != 4 {
			t.Errorf("a key that comes again: %v", err)
		}
	})
}
