package acceptance

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// secretKey is an order key that no error may show.
const secretKey = "customer jane.doe@example.org"

// sets sets the balance of an account under an order key.
func (r *rig) sets(ctx context.Context, key string, id, balance int) error {
	_, err := r.wrapped.ExecContext(bedsql.WithOrderKey(ctx, key), r.q(setBalance), balance, id)
	return err
}

// orderKey is an order key of the rig's target in the form of the log and the target. Versions of
// bed running side by side must agree on it.
func (r *rig) orderKey(key string) string { return r.orderKeyOf(targetOf(r.t, r.db).DataSource, key) }

func (r *rig) orderKeyOf(dataSource, key string) string {
	h := sha256.New()
	for _, s := range []string{r.storage.Identity(), dataSource, key} {
		_ = binary.Write(h, binary.BigEndian, int64(len(s)))
		_, _ = h.Write([]byte(s))
	}
	return txlog.OrderPrefix + hex.EncodeToString(h.Sum(nil))
}

// pendingHead leaves a write under the key in the log, which sets account 1 and was never
// sent.
func (r *rig) pendingHead(key string, balance int) (entry string) {
	r.t.Helper()
	tgt := targetOf(r.t, r.db)
	params, err := txlog.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: int64(balance)}, {Ordinal: 2, Value: int64(1)}})
	if err != nil {
		r.t.Fatal(err)
	}
	u := &txlog.Unit{ID: txlog.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings, Order: []txlog.Order{{Key: r.orderKey(key)}},
		Statements: []txlog.Statement{{SQL: r.q(setBalance), Params: params}}}
	u.Receipt = attempt.ReceiptID(tgt.Dialect, u.ID)
	if err := r.storage.Add(context.Background(), time.Minute, u); err != nil || u.Behind != "" {
		r.t.Fatalf("behind %q, %v", u.Behind, err)
	}
	if err := r.storage.Release(context.Background(), u, txlog.Verdict{}); err != nil {
		r.t.Fatal(err)
	}
	return u.ID
}

func (r *rig) wantPending(err error) *bedsql.PendingError {
	r.t.Helper()
	var p *bedsql.PendingError
	if !errors.As(err, &p) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
		r.t.Fatalf("got %v (%v), want ErrPending", err, bedsql.OutcomeOf(err))
	}
	return p
}

func (r *rig) wantBehind(err error, entry string) *bedsql.PendingError {
	r.t.Helper()
	p := r.wantPending(err)
	var behind *bedsql.BehindError
	if !errors.As(err, &behind) || behind.Entry != entry || strings.Contains(err.Error(), "jane") || !strings.Contains(err.Error(), entry) {
		r.t.Fatalf("got %v, want one that waits for %s", err, entry)
	}
	return p
}

func TestWritesUnderAnOrderKeyAreDeliveredInTheirOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0, 0)
		first := r.pendingHead(secretKey, 1)
		second := r.wantBehind(r.sets(t.Context(), secretKey, 1, 2), first).EntryID
		r.wantBehind(r.sets(t.Context(), secretKey, 1, 3), first)
		if err := r.sets(t.Context(), "another", 2, 7); err != nil {
			t.Fatalf("a write under another key: %v", err)
		}
		if got, err := r.storage.Get(t.Context(), second); err != nil || got.Behind != first || got.Receipt == "" {
			t.Fatalf("got %+v (%v)", got, err)
		}
		if got, err := r.storage.Get(t.Context(), first); err != nil || got.Blocks != 2 {
			t.Fatalf("got %+v (%v)", got, err)
		}
		if report := r.runOnce(); report.Delivered != 3 {
			t.Fatalf("the job reports %+v", report)
		}
		if got := r.balance(1); got != 3 {
			t.Errorf("account 1 holds %d, want what came last", got)
		}
		r.wantNoLog()
		if err := r.sets(t.Context(), secretKey, 1, 4); err != nil || r.balance(1) != 4 {
			t.Errorf("the next write under the key: %v", err)
		}
		r.wantNoLog()
	})
}

func TestParkedEntryIsSkippedAndItsLateRetryIsOvertaken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		first := r.pendingHead("k", 1)
		if _, err := r.storage.Decide(t.Context(), txlog.DecidePark, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		r.wantBehind(r.sets(t.Context(), "k", 1, 2), first)
		if report := r.runOnce(); report.Claimed != 0 {
			t.Fatalf("the job reports %+v", report)
		}
		if _, err := r.storage.Decide(t.Context(), txlog.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		if err := r.sets(t.Context(), "k", 1, 3); err != nil {
			t.Fatalf("beside a skipped entry: %v", err)
		}
		if _, err := r.storage.Decide(t.Context(), txlog.DecideSkip, []string{first}, nil, nil); !errors.Is(err, txlog.ErrNotFirst) {
			t.Fatalf("skipped twice: %v", err)
		}
		if err := r.storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Parked != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		if got := r.wantOneLog(); !got.Parked || !strings.Contains(got.LastError, dialect.ErrOvertaken.Error()) {
			t.Fatalf("got %+v", got)
		}
		if got := r.balance(1); got != 3 {
			t.Errorf("account 1 holds %d: an older write went back", got)
		}
		if err := r.storage.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := r.sets(t.Context(), "k", 1, 4); err != nil {
			t.Fatal(err)
		}
		r.wantNoLog()
	})
}

func TestSkippedEntryIsAppliedWhileNothingHasOvertakenIt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		first := r.pendingHead("k", 1)
		if _, err := r.storage.Decide(t.Context(), txlog.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 || r.balance(1) != 1 {
			t.Fatalf("the job reports %+v", report)
		}
		r.wantNoLog()
	})
}

func TestOrderWaitRunsTheWriteInItsTurn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, func(c *bedsql.Config) { c.OrderWait = time.Minute })
		r.account(0)
		first := r.pendingHead("k", 1)
		done := make(chan error, 1)
		go func() { done <- r.sets(context.Background(), "k", 1, 2) }()
		blocks := func(entry string) {
			t.Helper()
			eventually(t, "another waits", func() bool {
				got, err := r.storage.Get(t.Context(), entry)
				return err == nil && got.Blocks == 1
			})
		}
		blocks(first)
		if err := r.storage.Discard(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || r.balance(1) != 2 {
			t.Fatalf("got %v", err)
		}
		r.wantNoLog()
		again := r.pendingHead("k", 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { done <- r.sets(ctx, "k", 1, 4) }()
		blocks(again)
		cancel()
		r.wantBehind(<-done, again)
	})
}

func TestLocalTransactionsAndStagedGroupsKeepTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0, 0)
		both := func(balance int, begin context.Context, commit func(tx *sql.Tx) error) error {
			tx, err := r.wrapped.BeginTx(begin, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			for id := 1; id <= 2; id++ {
				if _, err := tx.ExecContext(begin, r.q(setBalance), balance, id); err != nil {
					return err
				}
			}
			return commit(tx)
		}
		commit := func(tx *sql.Tx) error { return tx.Commit() }
		under := bedsql.WithOrderKey(t.Context(), "k")
		if err := both(1, under, commit); err != nil || r.balance(2) != 1 {
			t.Fatalf("a local transaction: %v", err)
		}
		r.wantNoLog()
		first := r.pendingHead("k", 2)
		r.wantBehind(both(3, under, commit), first)
		if r.balance(2) != 1 {
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
			if _, err := tx.ExecContext(under, r.q(setBalance), n, 2); err != nil {
				return err
			}
			return tx.Commit()
		}); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Fatalf("a transaction that must not be run again and would have to wait: %v", err)
		}
		if _, err := r.wrapped.ExecContext(bedsql.WithOrderKey(t.Context(), ""), r.q(setBalance), 1, 1); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("an empty key: %v", err)
		}
		if err := both(9, t.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(under, r.q(setBalance), 9, 1)
			return err
		}); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("a transaction begun without the key: %v", err)
		}
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		for id, key := range []string{"k", "other"} {
			if _, err := r.wrapped.ExecContext(bedsql.WithOrderKey(ctx, key), r.q(setBalance), 4, id+1); err != nil {
				t.Fatal(err)
			}
		}
		r.wantBehind(soft.End(t.Context()), first)
		if report := r.runOnce(); report.Delivered != 3 || r.balance(1) != 4 || r.balance(2) != 4 {
			t.Fatalf("the job reports %+v, the accounts hold %d and %d", report, r.balance(1), r.balance(2))
		}
		r.wantNoLog()
	})
}

// No statement of a local transaction escapes the order key that the transaction has.
func TestOrderKeyHoldsWhereATransactionWouldRunUnlogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(0)
		under := bedsql.WithOrderKey(t.Context(), "k")
		conn, err := r.wrapped.Conn(t.Context())
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
		if _, err := tx.Exec(addOne); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("on a pinned connection: %v", err)
		}
		_ = tx.Rollback()
		if db.Driver != testdb.DriverPostgres {
			return
		}
		if tx, err = r.wrapped.BeginTx(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(under, addOne); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("PREPARE TRANSACTION 'a'"); !errors.Is(err, bedsql.ErrOrderUnusable) {
			t.Errorf("PREPARE TRANSACTION: %v", err)
		}
		_ = tx.Rollback()
		r.wantBalances(0)
	})
}

// The own rows of a transaction of WithTx have no entry that could wait for their turn.
func TestOwnRowsOfWithUnderAnOrderKeyAreRefused(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		if !w.seen || !w.exactlyOnce() {
			return
		}
		for _, first := range []bool{true, false} {
			tx, err := w.home.BeginTx(bedsql.WithOrderKey(context.Background(), "k"), nil)
			if err != nil {
				t.Fatal(err)
			}
			b := w.with(tx, tx)
			if !first {
				b.records(1)
			}
			_, err = tx.ExecContext(context.Background(), w.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 1, 1)
			if first {
				b.records(1)
				err = errors.Join(err, tx.Commit())
			} else {
				_ = tx.Rollback()
			}
			if !errors.Is(err, bedsql.ErrOrderUnusable) {
				t.Errorf("sent first %v: it says %v", first, err)
			}
			if n := w.atHome(); n != 100 || w.left() != 0 {
				t.Errorf("account 1 holds %d, the log %d entries", n, w.left())
			}
		}
	})
}

func TestWithKeepsTheOrderOfItsKeys(t *testing.T) {
	t.Parallel()
	eachWith(t, func(t *testing.T, w *withRig) {
		set := func(b *begun, key string, balance int) {
			t.Helper()
			b.stage(bedsql.WithOrderKey(b.ctx, key), b.rig.wrapped, setBalance, balance, 1)
		}
		b := w.begun()
		set(b, "k", 1)
		set(b, "other", 2)
		if err := b.tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		first := w.pendingHead("k", 3) // a rollback leaves nothing in its way
		b = w.begun()
		set(b, "other", 4)
		b.records(2)
		set(b, "k", 5)
		b.commit()
		w.wantBehind(b.end(), first)
		if report := w.delivers(); report.Claimed != 0 { // the first is too young
			t.Fatalf("the job reports %+v", report)
		}
		w.wantBehind(w.sets(t.Context(), "k", 1, 6), first)
		if report := w.runOnce(); report.Delivered != 3 {
			t.Fatalf("the job reports %+v", report)
		}
		w.wantBalances(6, 101)
		b = w.begun()
		set(b, "k", 7)
		b.commit()
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		w.wantBalances(7, 101)
		w.wantEmpty()
		if err := w.sets(t.Context(), "k", 1, 8); err != nil {
			t.Fatal(err)
		}
	})
}

// Of a key that nothing is under any more both tables forget. One under which an entry was
// skipped keeps its fence, however old: the entry may still be retried.
func TestJobForgetsIdleOrderKeysAndKeepsTheFenceOfSkippedEntries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		first := r.pendingHead("skipped", 1)
		if _, err := r.storage.Decide(t.Context(), txlog.DecideSkip, []string{first}, nil, nil); err != nil {
			t.Fatal(err)
		}
		for i, key := range []string{"skipped", "idle"} {
			if err := r.sets(t.Context(), key, 1, 2+i); err != nil {
				t.Fatal(err)
			}
		}
		log := r.logDB.Open(t)
		rows := func(key string, want int) {
			t.Helper()
			for table, pool := range map[string]*sql.DB{"bed_order": r.bare, "bed_order_key": log} {
				var n int
				if err := pool.QueryRow("SELECT COUNT(*) FROM " + table + " WHERE id = '" + r.orderKey(key) + "'").Scan(&n); err != nil || n != want {
					t.Errorf("%s has %d rows of the key %s, %v; want %d", table, n, key, err, want)
				}
			}
		}
		r.runOnce()
		rows("idle", 1)
		const long = 2 * attempt.DefaultRetention
		r.exec(fmt.Sprintf("UPDATE bed_order SET keep_until = keep_until - %d", long.Milliseconds()))
		if _, err := log.Exec(fmt.Sprintf("UPDATE bed_order_key SET last = last - %d", long.Microseconds())); err != nil {
			t.Fatal(err)
		}
		r.runOnce()
		r.runOnce()
		rows("idle", 0)
		rows("skipped", 1)
		if err := r.storage.Retry(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Parked != 1 || r.balance(1) != 3 {
			t.Fatalf("the job reports %+v, the account holds %d: an older write went back", report, r.balance(1))
		}
		if err := r.sets(t.Context(), "idle", 1, 4); err != nil || r.balance(1) != 4 {
			t.Errorf("a key that comes again: %v", err)
		}
	})
}
