package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// keyed is the context of a request that is sent once more.
func keyed(key string) (context.Context, *bedsql.IdempotencyKey) {
	return bedsql.WithIdempotencyKey(context.Background(), key)
}

// sendUnder sends a DML as a request under a key.
func (r *rig) sendUnder(key, query string, args ...any) (res sql.Result, replayed bool, err error) {
	ctx, k := keyed(key)
	res, err = r.wrapped.ExecContext(ctx, r.q(query), args...)
	return res, k.Replayed(), err
}

func (r *rig) mustSendUnder(key, query string, args ...any) (res sql.Result, replayed bool) {
	r.t.Helper()
	res, replayed, err := r.sendUnder(key, query, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return res, replayed
}

// beginUnder begins a local transaction as a request under a key.
func (r *rig) beginUnder(key string) (context.Context, *sql.Tx, *bedsql.IdempotencyKey) {
	r.t.Helper()
	ctx, k := keyed(key)
	tx, err := r.wrapped.BeginTx(ctx, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback() })
	return ctx, tx, k
}

// items makes a table whose ids the database makes.
func (r *rig) items() {
	r.t.Helper()
	kind := map[string]string{
		testdb.DriverMySQL:    "id INT AUTO_INCREMENT PRIMARY KEY, content BLOB, at DATETIME(6), price DOUBLE",
		testdb.DriverPostgres: "id SERIAL PRIMARY KEY, content BYTEA, at TIMESTAMPTZ, price DOUBLE PRECISION",
		testdb.DriverSQLite:   "id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB, at DATETIME, price REAL",
	}[r.db.Driver]
	r.exec("CREATE TABLE item (" + kind + ", name VARCHAR(20) NOT NULL)")
}

func wantReplayed(t testing.TB, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("Replayed: %v, want %v", got, want)
	}
}

func wantReused(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyReused) || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("%s: %v, want ErrKeyReused", what, err)
	}
}

func wantUnusable(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("%s: %v, want ErrKeyUnusable", what, err)
	}
}

func TestKeyADMLSentAgainIsAnsweredLikeTheFirst(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := newRig(t, freshLike(t, db), guarantee)
			r.account(1, 1, 1)
			r.items()
			for i := range 3 {
				ctx, k := keyed("order 7")
				inserted := r.stage(ctx, r.wrapped, "INSERT INTO item (name) VALUES (?)", "a")
				wantReplayed(t, k.Replayed(), i > 0)
				updated := r.stage(ctx, r.wrapped, increment+" OR id = ?", 1, 1, 3)
				none := r.stage(ctx, r.wrapped, increment, 1, 99)
				wantRows(t, inserted, 1)
				wantRows(t, updated, 2)
				wantRows(t, none, 0)
				id, err := inserted.LastInsertId()
				if db.Driver == testdb.DriverPostgres && err == nil || db.Driver != testdb.DriverPostgres && (id != 1 || err != nil) {
					t.Errorf("LastInsertId: %d, %v", id, err)
				}
				r.wantBalances(2, 1, 2)
				if n := r.count("SELECT COUNT(*) FROM item"); n != 1 {
					t.Errorf("there are %d items, want 1", n)
				}
				r.wantReceipts(3)
			}
			r.wantNoLog()
		})
	})
}

func TestKeyRETURNINGSentAgainGivesTheSameRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.items()
		at := time.Date(2024, 2, 29, 12, 30, 0, 123456000, time.UTC)
		type answer struct {
			columns, types []string
			rows           [][]any
		}
		send := func() (a answer, replayed bool) {
			t.Helper()
			ctx, k := keyed("returning")
			rows, err := r.wrapped.QueryContext(ctx, r.q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
				"a", []byte("\x00\xff"), at, 0.1, "b")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			types, err := rows.ColumnTypes()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range types {
				a.columns = append(a.columns, c.Name())
				a.types = append(a.types, c.DatabaseTypeName())
			}
			a.rows = content(t, rows)
			return a, k.Replayed()
		}
		first, replayed := send()
		wantReplayed(t, replayed, false)
		if len(first.rows) != 2 || len(first.columns) != 5 {
			t.Fatalf("the first gives %+v", first)
		}
		for range 2 {
			again, replayed := send()
			wantReplayed(t, replayed, true)
			if !reflect.DeepEqual(again, first) {
				t.Errorf("sent again it gives\n%+v, want\n%+v", again, first)
			}
		}
		if n := r.count("SELECT COUNT(*) FROM item"); n != 2 {
			t.Errorf("there are %d items, want 2", n)
		}
		// The same key with rows that nobody asks for is the same request.
		ctx, k := keyed("returning")
		if _, err := r.wrapped.ExecContext(ctx, r.q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
			"a", []byte("\x00\xff"), at, 0.1, "b"); err != nil || !k.Replayed() {
			t.Errorf("through Exec: %v, replayed %v", err, k.Replayed())
		}
		r.wantNoLog()
	})
}

func TestKeyALocalTransactionSentAgainIsAnsweredLikeTheFirst(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		r.items()
		for i := range 3 {
			ctx, tx, k := r.beginUnder("transfer")
			first := r.stage(ctx, tx, increment, -10, 1)
			second := r.stage(ctx, tx, increment+" OR id = ?", 10, 2, 3)
			var balance int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil || balance != 90 {
				t.Errorf("the query gives %d, %v; want what is there now", balance, err)
			}
			r.must(tx, "SAVEPOINT a")
			inserted := r.stage(ctx, tx, "INSERT INTO item (name) VALUES (?)", "rolled back")
			r.must(tx, "ROLLBACK TO SAVEPOINT a")
			var id int
			if err := tx.QueryRowContext(ctx, r.q("INSERT INTO item (id, name) VALUES (?, ?) RETURNING id"), 7, "kept").Scan(&id); err != nil || id != 7 {
				t.Errorf("RETURNING gives %d, %v; want 7", id, err)
			}
			wantReplayed(t, k.Replayed(), false)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, k.Replayed(), i > 0)
			for _, res := range []sql.Result{first, second, inserted} {
				wantRows(t, res, 1)
			}
			if n := r.count("SELECT COUNT(*) FROM item"); n != 1 {
				t.Errorf("there are %d items, want 1", n)
			}
			r.wantBalances(90, 110)
			r.wantReceipts(1)
		}
		r.wantNoLog()
	})
}

func TestKeyALocalTransactionWithOtherStatementsIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		send := func(sets ...[2]any) error {
			t.Helper()
			ctx, tx, k := r.beginUnder("transfer")
			var all error
			for _, args := range sets {
				_, err := tx.ExecContext(ctx, r.q(setBalance), args[0], args[1])
				all = errors.Join(all, err)
			}
			if all == nil {
				all = tx.Commit()
			} else {
				_ = tx.Rollback()
			}
			if all != nil {
				wantReplayed(t, k.Replayed(), false)
			}
			return all
		}
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Fatal(err)
		}
		wantReused(t, "other parameters", send([2]any{1, 1}, [2]any{3, 2}))
		wantReused(t, "fewer statements", send([2]any{1, 1}))
		wantReused(t, "none", send())
		wantReused(t, "more statements", send([2]any{1, 1}, [2]any{2, 2}, [2]any{3, 2}))
		wantReused(t, "another order", send([2]any{2, 2}, [2]any{1, 1}))
		_, _, err := r.sendUnder("transfer", setBalance, 9, 1)
		wantReused(t, "a single statement", err)
		r.wantBalances(1, 2)
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Errorf("the same again: %v", err)
		}
		r.wantReceipts(1)
		r.wantNoLog()
	})
}

func TestKeyAFailedStatementInATransactionIsPartOfItsAnswer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		for i := range 3 {
			ctx, tx, k := r.beginUnder("upsert")
			r.must(tx, "SAVEPOINT a")
			_, err := tx.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)")
			if err == nil || i == 0 && !isDriversOwn(db, err) || i > 0 && !strings.Contains(err.Error(), "failed") {
				t.Errorf("the duplicate: %v", err)
			}
			r.must(tx, "ROLLBACK TO SAVEPOINT a")
			wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, k.Replayed(), i > 0)
			r.wantBalances(101)
		}
	})
}

func TestKeyARollbackLeavesNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, tx, _ := r.beginUnder("k")
		r.stage(ctx, tx, increment, 1, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100)
		r.wantReceipts(0)
		// It can be another request then.
		_, replayed := r.mustSendUnder("k", increment, 5, 1)
		wantReplayed(t, replayed, false)
		r.wantBalances(105)
		r.wantNoLog()
	})
}

func TestKeyAStagedGroupSentAgainIsAnsweredLikeTheFirst(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB)
		send := func(by int) (results []sql.Result, replayed bool, err error) {
			t.Helper()
			ctx, k := keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rigs {
				results = append(results, r.stage(ctx, r.wrapped, increment, by, 1))
				tx, err := r.wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				// Without the context too it belongs to the request.
				r.must(tx, "UPDATE account SET balance = balance + ? WHERE id <= ?", by, 2)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			err = st.End(context.Background())
			return results, k.Replayed(), err
		}
		for i := range 3 {
			results, replayed, err := send(1)
			if err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, replayed, i > 0)
			for _, res := range results {
				wantRows(t, res, 1)
			}
		}
		results, replayed, err := send(2)
		wantReused(t, "End of another request", err)
		wantReplayed(t, replayed, false)
		for i, r := range rigs {
			wantResult(t, results[i], bedsql.ErrKeyReused)
			r.wantBalances(102, 101)
			r.wantReceipts(1)
		}
		rigs[0].wantNoLog() // also not parked: it can never be applied
	})
}

func TestKeyAnotherRequestIsRefusedAndLeavesTheFirstAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		r.mustSendUnder("k", setBalance, 1, 1)
		for what, send := range map[string]func(ctx context.Context) error{
			"other parameters": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), 2, 1)
				return err
			},
			"parameters that only read the same": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), "1", 1)
				return err
			},
			"other SQL": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q("UPDATE account SET balance = 0 + ? WHERE id = ?"), 1, 1)
				return err
			},
			"RETURNING": func(ctx context.Context) error {
				rows, err := r.wrapped.QueryContext(ctx, r.q("INSERT INTO account VALUES (?, ?) RETURNING id"), 3, 3)
				if err == nil {
					_ = rows.Close()
				}
				return err
			},
			"in a soft transaction": func(ctx context.Context) error {
				ctx, st, err := bedsql.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.wrapped.ExecContext(ctx, r.q(setBalance), 2, 1)
				return errors.Join(err, st.End(context.Background()))
			},
		} {
			ctx, k := keyed("k")
			wantReused(t, what, send(ctx))
			wantReplayed(t, k.Replayed(), false)
		}
		r.wantBalances(1, 100)
		r.wantNoLog()
		if _, replayed := r.mustSendUnder("k", setBalance, 1, 1); !replayed {
			t.Error("the first request is not known any more")
		}
		r.wantReceipts(1)
	})
}

func TestKeySetFingerprintSaysWhatTheSameRequestIs(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		single := func(fingerprint string, balance int) (bool, error) {
			ctx, k := keyed("single")
			k.SetFingerprint(fingerprint)
			_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), balance, 1)
			return k.Replayed(), err
		}
		tx := func(fingerprint string, balance int) (bool, error) {
			ctx, k := keyed("tx")
			k.SetFingerprint(fingerprint)
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				return false, err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.q(setBalance), balance, 2)
			return k.Replayed(), errors.Join(err, tx.Commit())
		}
		for _, send := range []func(string, int) (bool, error){single, tx} {
			if _, err := send("order 1", 1); err != nil {
				t.Fatal(err)
			}
			if _, err := send("order 1", 2); err != nil {
				t.Errorf("with other parameters but the same fingerprint: %v", err)
			}
			_, err := send("order 2", 1)
			wantReused(t, "another fingerprint", err)
		}
		r.wantBalances(1, 1)
		r.wantNoLog()
	})
}

func TestKeyWritesAreToldApartByTheirOrderOnEachDataSource(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB)
		send := func(crash bool) {
			t.Helper()
			ctx, _ := keyed("k")
			for _, r := range rigs {
				r.stage(ctx, r.wrapped, increment, 1, 1)
				r.stage(ctx, r.wrapped, increment, 1, 1) // the same text is another write
				if crash && r == rigs[1] {
					return
				}
			}
			for _, r := range rigs {
				tx, err := r.wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.stage(ctx, tx, increment, 1, 2)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		send(true)
		send(false)
		send(false)
		for _, r := range rigs {
			r.wantBalances(102, 101)
		}
	})
}

func TestKeyOfManyCallersAtOnceOneAppliesAndTheOthersReplay(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers = 16
		r := newRig(t, db)
		r.account(0)
		r.receiptTable()
		pools := []*sql.DB{r.wrapped, r.open(db.DSN)} // as of two processes
		race := func(name string, send func(ctx context.Context, pool *sql.DB) error) {
			t.Helper()
			var (
				all      sync.WaitGroup
				replayed atomic.Int64
			)
			for i := range callers {
				all.Go(func() {
					ctx, k := keyed(name)
					if err := send(ctx, pools[i%len(pools)]); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if k.Replayed() {
						replayed.Add(1)
					}
				})
			}
			all.Wait()
			if n := replayed.Load(); n != callers-1 {
				t.Errorf("%s: %d of %d were answered again, want all but one", name, n, callers)
			}
		}
		single := func(ctx context.Context, pool *sql.DB) error {
			res, err := pool.ExecContext(ctx, r.q(increment), 1, 1)
			if err == nil {
				wantRows(t, res, 1)
			}
			return err
		}
		transaction := func(ctx context.Context, pool *sql.DB) error {
			tx, err := pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.q(increment), 1, 1)
			return errors.Join(err, tx.Commit())
		}
		race("single", single)
		r.wantBalances(1)
		race("transaction", transaction)
		r.wantBalances(2)
		// The first holds the key for a while, and then rolls back.
		for _, send := range []struct {
			name string
			send func(ctx context.Context, pool *sql.DB) error
		}{{"single after a rollback", single}, {"transaction after a rollback", transaction}} {
			_, tx, _ := r.beginUnder(send.name)
			r.must(tx, increment, 100, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				race(send.name, send.send)
			}()
			eventually(t, "others wait for it", func() bool { return r.waitingOrBusy() >= 2 })
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			<-done
		}
		r.wantBalances(4)
		r.wantNoLog()
	})
}

// waitingOrBusy is waiting; at a SQLite file, where nobody can be asked, it
// counts the connections in use.
func (r *rig) waitingOrBusy() int {
	r.t.Helper()
	if r.db.Driver == testdb.DriverSQLite {
		return r.wrapped.Stats().InUse
	}
	return r.waiting()
}

func TestKeysThatDifferInCaseOrBlanksAreDifferent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		keys := []string{"k", "K", "k ", " k", "\x00", "k\x00", "ä", "a\u0308", strings.Repeat("k", 10000)}
		for range 2 {
			for _, key := range keys {
				r.mustSendUnder(key, increment, 1, 1)
			}
		}
		r.wantBalances(len(keys))
	})
}

func TestKeyOfAPendingWriteIsAppliedByTheNextCallerAndTheJobFindsThat(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, impatient(db), noSyncRetry)
		r.account(100)
		r.receiptTable()
		free := r.blockRow(1)
		_, _, err := r.sendUnder("k", increment, 1, 1)
		first := wantPending(t, err)
		free()
		res, replayed := r.mustSendUnder("k", increment, 1, 1)
		wantReplayed(t, replayed, false)
		wantRows(t, res, 1)
		r.wantBalances(101)
		if u := r.wantLeft(1); u.ID != first.LogID {
			t.Errorf("the log holds %s, want the first one's, %s", u.ID, first.LogID)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(101)
		r.wantNoLog()
		r.wantReceipts(1)
	})
}

func TestKeyOfAPendingWriteThatTheJobDeliveredIsAnsweredWithWhatTheJobGot(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, impatient(db), noSyncRetry)
		r.account(100, 100)
		r.receiptTable()
		free := r.blockRow(1)
		_, _, err := r.sendUnder("single", increment+" OR id = ?", 1, 1, 2)
		wantPending(t, err)
		free()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		res, replayed := r.mustSendUnder("single", increment+" OR id = ?", 1, 1, 2)
		wantReplayed(t, replayed, true)
		wantRows(t, res, 2)
		r.wantBalances(101, 101)
		r.wantReceipts(1)
	})
}

func TestKeyTheAnswerThatWasLostIsReadFromTheReceipt(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, c *commits) {
		r.account(100, 100)
		r.items()
		r.mustSendUnder("warm", increment, 0, 1)
		struck := p.CutAfter(c.match)
		res, replayed := r.mustSendUnder("k", increment+" OR id = ?", 1, 1, 2)
		waitFor(t, "the answer is lost", struck)
		wantReplayed(t, replayed, false)
		wantRows(t, res, 2)
		struck = p.CutAfter(c.match)
		ctx, _ := keyed("rows")
		var id int
		if err := r.wrapped.QueryRowContext(ctx, r.q("INSERT INTO item (name) VALUES (?) RETURNING id"), "a").Scan(&id); err != nil || id != 1 {
			t.Errorf("RETURNING gives %d, %v; want 1", id, err)
		}
		waitFor(t, "the answer is lost", struck)
		r.wantBalances(101, 101)
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
	})
}

// A COMMIT without an answer, of a transaction that may be run again and of
// one that may not.
func TestKeyTheLostAnswerToACommitIsFoundOutAndTheRequestCanBeSentAgain(t *testing.T) {
	t.Parallel()
	for what, strike := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
		"committed": (*testproxy.Proxy).CutAfter, "not committed": (*testproxy.Proxy).CutBefore,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, _ *commits) {
				r.account(100, 100)
				r.receiptTable()
				send := func(key string, read, fail bool) (bool, error) {
					t.Helper()
					ctx, tx, k := r.beginUnder(key)
					if read {
						var n int
						if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
							t.Fatal(err)
						}
					}
					wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
					wantRows(t, r.stage(ctx, tx, increment, 1, 2), 1)
					if !fail {
						err := tx.Commit()
						return k.Replayed(), err
					}
					struck := strike(p, testproxy.Text("commit"))
					err := tx.Commit()
					waitFor(t, "the answer is lost", struck)
					return k.Replayed(), err
				}
				if _, err := send("replayable", false, true); err != nil {
					t.Fatal(err)
				}
				r.wantBalances(101, 101)
				ctx, tx, k := r.beginUnder("replayable")
				wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
				wantRows(t, r.stage(ctx, tx, increment, 1, 2), 1)
				if err := tx.Commit(); err != nil || !k.Replayed() {
					t.Errorf("sent again: %v, replayed %v", err, k.Replayed())
				}
				r.wantBalances(101, 101)

				_, err := send("read", true, true)
				switch {
				case what == "committed" && err != nil:
					t.Errorf("it was committed, and Commit says %v", err)
				case what == "not committed" && (err == nil || errors.Is(err, bedsql.ErrPending)):
					t.Errorf("it was not committed, and Commit says %v", err)
				}
				replayed, err := send("read", true, false)
				if err != nil {
					t.Errorf("sent again: %v", err)
				}
				wantReplayed(t, replayed, what == "committed")
				r.wantBalances(102, 102)
				eventually(t, "the log is empty", func() bool { return r.left() == 0 })
			})
		})
	}
}

// As above, but nobody tells its caller: the job finds out.
func TestKeyACommitThatTheJobDecidedCanBeSentAgain(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, _ *commits) {
		r.account(100)
		r.receiptTable()
		job := r.job()
		begin := func(read bool) (*sql.Tx, *bedsql.IdempotencyKey) {
			t.Helper()
			ctx, tx, k := r.beginUnder(fmt.Sprint("read ", read))
			if read {
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
					t.Fatal(err)
				}
			}
			wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
			return tx, k
		}
		for i, read := range []bool{false, true} {
			tx, _ := begin(read)
			struck := p.CutBefore(testproxy.Text("commit"))
			p.Refuse() // those that would find it out in the call
			wantPending(t, tx.Commit())
			waitFor(t, "the connection is cut", struck)
			p.Accept()
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			tx, k := begin(read)
			if err := tx.Commit(); err != nil {
				t.Errorf("sent again: %v", err)
			}
			wantReplayed(t, k.Replayed(), !read)
			r.wantBalances(101 + i)
		}
	}, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
}

func TestKeyARefusedRequestLeavesNoReceiptAndCanBeSentAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		_, _, err := r.sendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
		if !isDriversOwn(db, err) {
			t.Fatalf("a duplicate: %v, want the driver's own error", err)
		}
		r.wantReceipts(0)
		r.wantNoLog()
		r.exec("DELETE FROM account")
		for i := range 2 {
			_, replayed := r.mustSendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
			wantReplayed(t, replayed, i > 0)
		}
		r.wantBalances(5)
		// And in a staged soft transaction, where the refused one stays parked.
		group := func() error {
			ctx, _ := keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 2, 5)
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			return st.End(context.Background())
		}
		var refused *bedsql.RefusedError
		if err := group(); !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.exec("DELETE FROM account")
		if err := group(); err != nil {
			t.Errorf("sent again: %v", err)
		}
		u := r.wantLeft(2)
		if err := r.storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(5, 5)
		r.wantNoLog()
	})
}

// In a soft transaction the writes behind one that is refused go on.
func TestKeyAWriteThatASoftTransactionParkedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		send := func() (replayed bool, err error) {
			ctx, k := keyed("k")
			ctx, st, err := bedsql.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			wantReplayed(t, k.Replayed(), false)
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 2, 6)
			return k.Replayed(), st.End(context.Background())
		}
		replayed, err := send()
		wantReplayed(t, replayed, false)
		var refused *bedsql.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.exec("DELETE FROM account WHERE id = 1")
		replayed, err = send()
		wantReplayed(t, replayed, true)
		if err != nil {
			t.Errorf("End: %v", err)
		}
		r.wantBalances(5, 6)
	})
}

func TestKeyRetentionIsWhenTheJobMayPurgeItsReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce, func(c *bedsql.Config) {
			c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour
		})
		r.account(100)
		job := func() {
			t.Helper()
			r.runOnce(func(c *asyncjob.Config) { c.KeyRetention, c.ReceiptRetention = 3*time.Hour, time.Hour }) // each new job purges at once
		}
		r.mustSendUnder("k", increment, 1, 1)
		closed := r.open(db.DSN)
		r.must(closed, increment, 0, 1)
		if err := closed.Close(); err != nil { // which erases the receipts that nobody needs
			t.Error(err)
		}
		r.wantReceipts(1)
		r.wantNoLog()
		r.receiptsAge(time.Minute)
		job() // finds that its log is gone
		r.receiptsAge(2 * time.Hour)
		job()
		r.wantReceipts(1)
		if _, replayed := r.mustSendUnder("k", increment, 1, 1); !replayed {
			t.Error("within its retention the key is forgotten")
		}
		r.wantNoLog() // of the second request, which would keep it
		r.receiptsAge(2 * time.Hour)
		job()
		r.wantReceipts(0)
		if _, replayed := r.mustSendUnder("k", increment, 1, 1); replayed {
			t.Error("after its retention the key is still known")
		}
		r.wantBalances(102)
	})
}

func TestKeyWhatCannotCarryItsReceiptIsRefusedAndNotSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		exec := func(ctx context.Context, on executor, query string) error {
			_, err := on.ExecContext(ctx, query)
			return err
		}
		key := func() context.Context {
			ctx, _ := keyed("k")
			return ctx
		}
		ctx, _ := keyed("")
		wantUnusable(t, "an empty key", exec(ctx, r.wrapped, addOne))
		_, err := r.wrapped.BeginTx(ctx, nil)
		wantUnusable(t, "a transaction under an empty key", err)
		staging, st, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.stage(staging, r.wrapped, addOne)
		wantUnusable(t, "End under an empty key", st.End(context.Background()))
		wantResult(t, res, bedsql.ErrKeyUnusable)

		pinned := r.conn()
		rawExec(r, pinned, "SELECT 1")
		wantUnusable(t, "a pinned connection", exec(key(), pinned, addOne))
		_, err = pinned.BeginTx(key(), nil)
		wantUnusable(t, "a transaction on a pinned connection", err)

		tx := r.begin()
		wantUnusable(t, "a transaction begun without it", exec(key(), tx, addOne))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		ctx, tx, _ = r.beginUnder("one")
		wantUnusable(t, "a transaction begun under another one", exec(key(), tx, addOne))
		wantUnusable(t, "several statements in a transaction", exec(ctx, tx, addOne+"; "+addOne))
		wantUnusable(t, "COMMIT as text", exec(ctx, tx, "COMMIT"))
		wantUnusable(t, "ROLLBACK as text", exec(ctx, tx, "ROLLBACK"))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		begin := "BEGIN"
		if db.Driver == testdb.DriverMySQL {
			begin = "START TRANSACTION"
		}
		conn := r.conn()
		wantUnusable(t, "BEGIN as text", exec(key(), conn, begin))
		wantUnusable(t, "several statements in one text", exec(key(), conn, addOne+"; "+addOne))
		if err := exec(context.Background(), conn, begin); err != nil {
			t.Fatal(err)
		}
		wantUnusable(t, "a transaction begun by a statement", exec(key(), conn, addOne))
		if err := exec(context.Background(), conn, "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		staging, st = staged(t)
		staging, _ = bedsql.WithIdempotencyKey(staging, "k")
		wantUnusable(t, "a staged soft transaction begun without it", exec(staging, r.wrapped, addOne))
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		r.wantBalances(100)
		r.wantNoLog()
		r.wantReceipts(0)
		// Skip wins over the key.
		if err := exec(bedsql.Skip(key()), r.wrapped, addOne); err != nil {
			t.Error(err)
		}
		r.wantBalances(101)
		r.wantReceipts(0)
	})
}

func TestKeyAReadOnlyTransactionDoesNotUseIt(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		r.receiptTable()
		for i := range 2 {
			ctx, k := keyed("k")
			tx, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100+i {
				t.Errorf("the query gives %d, %v", n, err)
			}
			_, err = tx.ExecContext(ctx, addOne)
			wantUnusable(t, "a write in a read-only transaction", err)
			_ = tx.Rollback()
			r.stage(ctx, r.wrapped, addOne)
			wantReplayed(t, k.Replayed(), i > 0)
			if i == 0 {
				r.wantReceipts(1)
			}
			n = r.balance(1)
			if n != 101 {
				t.Errorf("the balance is %d, want 101", n)
			}
		}
	})
}

// Order has what differs at each resend: gorm's created_at.
type Order struct {
	ID        string `gorm:"primaryKey;size:40"`
	Amount    int
	CreatedAt time.Time
}

func TestKeyGormUnderItsOwnFingerprint(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, mode := range gormModes {
			t.Run(mode.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db))
				g := openGorm(t, r.db.Driver, r.register(), r.db.DSN, mode)
				if err := g.AutoMigrate(&Order{}, &Author{}, &Book{}); err != nil {
					t.Fatal(err)
				}
				sent := 0
				send := func(fingerprint string) (replayed bool, author uint, err error) {
					sent++
					now := time.Date(2024, 1, sent, 0, 0, 0, 0, time.UTC)
					ctx, k := keyed("order 1")
					if fingerprint != "" {
						k.SetFingerprint(fingerprint)
					}
					g := g.Session(&gorm.Session{Context: ctx, NowFunc: func() time.Time { return now }})
					a := Author{Name: "a"}
					err = errors.Join(
						g.Create(&Order{ID: "o-1", Amount: 5}).Error,
						g.Model(&Order{}).Where("id = ?", "o-1").Update("amount", gorm.Expr("amount + ?", 1)).Error,
						g.Create(&a).Error, // whose id the database makes
					)
					return k.Replayed(), a.ID, err
				}
				for i := range 3 {
					replayed, author, err := send("order 1: 5")
					if err != nil || replayed != (i > 0) || author != 1 {
						t.Errorf("sent %d times: replayed %v, author %d, %v", i+1, replayed, author, err)
					}
				}
				_, _, err := send("")
				wantReused(t, "without the fingerprint", err)
				var all []Order
				if err := g.Find(&all).Error; err != nil || len(all) != 1 || all[0].Amount != 6 || all[0].CreatedAt.UTC().Day() != 1 {
					t.Errorf("there are %v, %v", all, err)
				}
				if n := r.count("SELECT COUNT(*) FROM authors"); n != 1 {
					t.Errorf("there are %d authors, want 1", n)
				}
				eventually(t, "the log is empty", func() bool { return r.left() == 0 })
			})
		}
	})
}

// The log may be out of reach when a request is sent: its key is still free.
func TestKeyARequestThatCouldNotBeLoggedCanBeSentAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		down := true
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error {
				if down {
					return errors.New("the log is down")
				}
				return nil
			}}
		})
		r.account(100)
		r.receiptTable()
		send := func() (err error, replayed bool) {
			ctx, k := keyed("k")
			if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1); err != nil && !errors.Is(err, bedsql.ErrNotLogged) {
				t.Error(err)
			}
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			r.must(tx, increment, 1, 1)
			return tx.Commit(), k.Replayed()
		}
		if err, _ := send(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(100)
		r.wantReceipts(0)
		down = false
		for i := range 2 {
			err, replayed := send()
			if err != nil {
				t.Error(err)
			}
			wantReplayed(t, replayed, i > 0)
			r.wantBalances(102)
		}
	})
}
