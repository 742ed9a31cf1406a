package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// staged opens a staged soft transaction.
func staged(t testing.TB) (context.Context, *bedsql.SoftTransaction) {
	t.Helper()
	ctx, st, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Discard)
	return ctx, st
}

// stage records a statement, with ? for parameters.
func (r *rig) stage(ctx context.Context, on executor, query string, args ...any) sql.Result {
	r.t.Helper()
	res, err := on.ExecContext(ctx, r.q(query), args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return res
}

func wantRows(t testing.TB, res sql.Result, want int64) {
	t.Helper()
	if n, err := res.RowsAffected(); n != want || err != nil {
		t.Errorf("RowsAffected: %d, %v; want %d", n, err, want)
	}
}

// wantResult checks that both methods of a Result give the same error.
func wantResult(t testing.TB, res sql.Result, want error) {
	t.Helper()
	_, rows := res.RowsAffected()
	_, id := res.LastInsertId()
	if !errors.Is(rows, want) || !errors.Is(id, want) {
		t.Errorf("RowsAffected: %v, LastInsertId: %v; want %v", rows, id, want)
	}
}

// wantLeft waits until the log holds a number of statements, for what was
// delivered is removed behind its caller, and then wants them to be one unit.
func (r *rig) wantLeft(statements int) *txlog.Unit {
	r.t.Helper()
	eventually(r.t, "only what is not delivered is left in the log", func() bool { return r.left() == statements })
	return r.wantOneLog()
}

// newRigs sets up one rig on each kind of database, with one log for all.
func newRigs(t testing.TB, logDB testdb.DB, change ...func(*bedsql.Config)) []*rig {
	t.Helper()
	var shared txlog.Storage
	share := func(c *bedsql.Config) {
		if shared == nil {
			shared = c.Storage
		}
		c.Storage = shared
	}
	var rigs []*rig
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t), testdb.SQLite(t)} {
		r := newRigWithLog(t, db, logDB, append([]func(*bedsql.Config){share}, change...)...)
		r.account(100, 100)
		rigs = append(rigs, r)
	}
	return rigs
}

// jobForAll makes a job that delivers to all of the rigs, which share a log.
func jobForAll(t testing.TB, rigs []*rig) *asyncjob.Job {
	t.Helper()
	targets := asyncjob.Targets{}
	for _, r := range rigs {
		tgt, err := target(r.db.Driver)(r.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		targets[tgt.DataSource] = tgt
	}
	return rigs[0].jobFor(targets)
}

// eachGuarantee runs f with either guarantee.
func eachGuarantee(t *testing.T, f func(t *testing.T, guarantee func(*bedsql.Config))) {
	t.Helper()
	t.Run("at least once", func(t *testing.T) {
		t.Parallel()
		f(t, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
	})
	t.Run("exactly once", func(t *testing.T) {
		t.Parallel()
		f(t, exactlyOnce)
	})
}

func TestStagedBeforeEndNothingHasHappenedAnywhereAndAfterItAll(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			rigs := newRigs(t, freshLike(t, logDB), guarantee)
			ctx, st := staged(t)
			var results []sql.Result
			for range 2 {
				for _, r := range rigs {
					results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1), r.stage(ctx, r.wrapped, setBalance, 7, 2))
				}
			}
			for _, res := range results {
				wantResult(t, res, bedsql.ErrStaged)
			}
			for _, r := range rigs {
				r.wantBalances(100, 100)
			}
			rigs[0].wantNoLog()
			if err := st.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, r := range rigs {
				r.wantBalances(102, 7)
			}
			for i, res := range results {
				if r := rigs[i/2%3]; r.db.Driver == testdb.DriverMySQL && i == 7 {
					wantRows(t, res, 0) // MySQL counts rows that change
				} else {
					wantRows(t, res, 1)
				}
			}
			rigs[0].wantNoLog()
			if err := st.End(context.Background()); err != nil {
				t.Errorf("End the second time: %v", err)
			}
			for _, r := range rigs {
				r.wantBalances(102, 7)
			}
		})
	})
}

func TestStagedEndWritesTheLogsOfAllDataSourcesByOneInsert(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, logDB testdb.DB) {
		p := testproxy.New(t, logDB.Addr())
		rigs := newRigs(t, logDB.Via(p.Addr()))
		inserts := p.Count(testproxy.Text("/* marked */"))
		ctx, st := staged(t)
		for _, r := range rigs {
			r.stage(ctx, r.wrapped, "/* marked */ "+increment, 1, 1)
			r.stage(ctx, r.wrapped, "/* marked */ "+increment, 1, 2)
		}
		if n := inserts(); n != 0 {
			t.Errorf("the log was told of %d statements before End", n)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := inserts(); n != 1 {
			t.Errorf("%d messages to the log held statements, want 1", n)
		}
		for _, r := range rigs {
			r.wantBalances(101, 101)
		}
	})
}

func TestStagedDataSourcesAreDeliveredSideBySide(t *testing.T) {
	t.Parallel()
	for blocked, name := range []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite} {
		t.Run(name+" is locked", func(t *testing.T) {
			t.Parallel()
			rigs := newRigs(t, testdb.MySQL(t), exactlyOnce)
			for _, r := range rigs {
				r.receiptTable() // it could not be created in a SQLite file that is locked
			}
			free := rigs[blocked].blockRow(1)
			ctx, st := staged(t)
			rigs[blocked].stage(ctx, rigs[blocked].wrapped, increment, 1, 1)
			for _, r := range rigs {
				r.stage(ctx, r.wrapped, increment, 1, 1)
			}
			done := make(chan error, 1)
			go func() { done <- st.End(context.Background()) }()
			for i, r := range rigs {
				if i != blocked {
					eventually(t, "the others are delivered", func() bool { return r.balance(1) == 101 })
				}
			}
			select {
			case err := <-done:
				t.Errorf("End has returned although a data source is locked: %v", err)
			default:
			}
			free()
			if err := <-done; err != nil {
				t.Error(err)
			}
			rigs[blocked].wantBalances(102)
			rigs[0].wantNoLog()
		})
	}
}

func TestStagedWritesOfOneDataSourceAreOneLocalTransactionInTheirOrder(t *testing.T) {
	t.Parallel()
	for failing, name := range []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite} {
		t.Run(name+" refuses", func(t *testing.T) {
			t.Parallel()
			eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
				rigs := newRigs(t, testdb.Postgres(t), guarantee)
				ctx, st := staged(t)
				var refused []sql.Result
				for i, r := range rigs {
					insert := r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 3, 5)
					double := r.stage(ctx, r.wrapped, "UPDATE account SET balance = balance * 2 WHERE id = ?", 3)
					if i == failing {
						duplicate := r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
						refused = []sql.Result{insert, double, duplicate, r.stage(ctx, r.wrapped, increment, 1, 2)}
					}
					r.stage(ctx, r.wrapped, "UPDATE account SET balance = balance + ? WHERE id = ?", 3, 3)
				}
				err := st.End(context.Background())
				var refusal *bedsql.RefusedError
				if !errors.As(err, &refusal) || errors.Is(err, bedsql.ErrPending) || !holdsDriversOwn(rigs[failing].db, refusal.Cause) {
					t.Fatalf("End: %v, want the refusal with the driver's own error", err)
				}
				for i, r := range rigs {
					if i == failing {
						if n := r.count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 0 {
							t.Error("a part of the local transaction was applied")
						}
						r.wantBalances(100, 100)
					} else {
						r.wantBalances(100, 100, 13)
					}
				}
				u := rigs[0].wantLeft(5)
				if !u.Parked || u.ID != refusal.LogID || u.TransactionID != st.ID() || len(u.Statements) != 5 {
					t.Errorf("what is left in the log: %+v", u)
				}
				for _, res := range refused {
					if _, err := res.RowsAffected(); !errors.As(err, &refusal) {
						t.Errorf("RowsAffected: %v, want the refusal", err)
					}
				}
				if second := st.End(context.Background()); second == nil || second.Error() != err.Error() {
					t.Errorf("End the second time: %v, want the same again", second)
				}
				// A person mends the data and has it delivered.
				rigs[failing].exec("DELETE FROM account WHERE id = 1")
				if err := rigs[0].storage.Retry(context.Background(), u.ID); err != nil {
					t.Fatal(err)
				}
				if _, err := jobForAll(t, rigs).RunOnce(context.Background()); err != nil {
					t.Fatal(err)
				}
				rigs[failing].wantBalances(5, 101, 13)
				rigs[0].wantNoLog()
			})
		})
	}
}

func TestStagedDiscardLeavesNothingAnywhere(t *testing.T) {
	t.Parallel()
	rigs := newRigs(t, testdb.SQLite(t))
	ctx, st := staged(t)
	var results []sql.Result
	for _, r := range rigs {
		results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
	}
	open, err := rigs[0].wrapped.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	rigs[0].stage(ctx, open, increment, 1, 1)
	st.Discard()
	st.Discard()
	for _, r := range rigs {
		if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Exec after Discard: %v, want ErrEnded", err)
		}
		if tx, err := r.wrapped.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("BeginTx after Discard: %v, %v; want ErrEnded", tx, err)
		}
	}
	if err := open.Commit(); !errors.Is(err, bedsql.ErrEnded) {
		t.Errorf("Commit after Discard: %v, want ErrEnded", err)
	}
	for range 2 {
		if err := st.End(context.Background()); !errors.Is(err, bedsql.ErrEnded) || !strings.Contains(err.Error(), "discarded") {
			t.Errorf("End after Discard: %v, want ErrEnded, for nothing was delivered", err)
		}
	}
	for _, res := range results {
		wantResult(t, res, bedsql.ErrStaged)
		if _, err := res.RowsAffected(); !strings.Contains(err.Error(), "discarded") {
			t.Errorf("RowsAffected after Discard: %v", err)
		}
	}
	for _, r := range rigs {
		r.wantBalances(100)
	}
	rigs[0].wantNoLog()
}

func TestStagedAContextThatEndsBeforeEndDiscards(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		begun, cancel := context.WithCancel(context.Background())
		ctx, st, err := bedsql.Begin(begun, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		cancel()
		if _, err := r.wrapped.ExecContext(context.WithoutCancel(ctx), r.q(increment), 1, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v, want context.Canceled", err)
		}
		for range 2 {
			if err := st.End(context.Background()); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "discarded") {
				t.Errorf("End: %v, want that it is discarded, and context.Canceled", err)
			}
		}
		wantResult(t, res, context.Canceled)
		r.wantBalances(100)
		r.wantNoLog()
	})
}

func TestStagedResultsTellTheirIDsAfterEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := newRig(t, freshLike(t, db), guarantee)
			id := map[string]string{
				testdb.DriverMySQL: "INT AUTO_INCREMENT PRIMARY KEY", testdb.DriverPostgres: "SERIAL PRIMARY KEY", testdb.DriverSQLite: "INTEGER PRIMARY KEY AUTOINCREMENT",
			}[db.Driver]
			r.exec("CREATE TABLE item (id " + id + ", name VARCHAR(20) NOT NULL)")
			ctx, st := staged(t)
			first := r.stage(ctx, r.wrapped, "INSERT INTO item (name) VALUES (?)", "a")
			second := r.stage(ctx, r.wrapped, "INSERT INTO item (name) VALUES (?)", "b")
			both := r.stage(ctx, r.wrapped, "UPDATE item SET name = ?", "c")
			if err := st.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantRows(t, both, 2)
			for i, res := range []sql.Result{first, second} {
				wantRows(t, res, 1)
				n, err := res.LastInsertId()
				if db.Driver == testdb.DriverPostgres {
					if err == nil || errors.Is(err, bedsql.ErrStaged) || errors.Is(err, bedsql.ErrRowsUnknown) {
						t.Errorf("LastInsertId: %d, %v; want the driver's own error", n, err)
					}
				} else if n != int64(i+1) || err != nil {
					t.Errorf("LastInsertId: %d, %v; want %d", n, err, i+1)
				}
			}
		})
	})
}

func TestStagedRefusesWhatItCannotRecord(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		returning := "INSERT INTO account VALUES (9, 9) RETURNING id"
		session := map[string]string{
			testdb.DriverMySQL:    "UPDATE account SET balance = (@v := 5) WHERE id = 1",
			testdb.DriverPostgres: "UPDATE account SET balance = currval('s') WHERE id = 1",
			testdb.DriverSQLite:   "UPDATE account SET balance = last_insert_rowid() WHERE id = 1",
		}[db.Driver]
		ctx, st := staged(t)
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, bedsql.ErrStaged) {
				t.Errorf("%s: %v, want ErrStaged", what, err)
			}
		}
		inside := func(on interface {
			executor
			QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		},
		) {
			t.Helper()
			rows, err := on.QueryContext(ctx, returning)
			if err == nil {
				_ = rows.Close()
			}
			check("RETURNING", err)
			for _, query := range []string{session, "UPDATE account SET balance = 1; UPDATE account SET balance = 2"} {
				_, err := on.ExecContext(ctx, query)
				check(query, err)
			}
		}
		inside(r.wrapped)
		for _, query := range []string{"BEGIN", "SAVEPOINT a"} {
			_, err := r.wrapped.ExecContext(ctx, query)
			check(query, err)
		}
		tx, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		inside(tx)
		for _, query := range []string{"COMMIT", "ROLLBACK", "ROLLBACK TO SAVEPOINT never_set"} {
			_, err := tx.ExecContext(ctx, query)
			check(query, err)
		}
		if _, err := tx.ExecContext(bedsql.Skip(ctx), addOne); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("Skip inside a local transaction that only records: %v, want ErrStaged", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if _, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("a local transaction with an isolation level: %v, want ErrStaged", err)
		}
		// A transaction that was begun outside of it, and a pinned connection.
		outside := r.begin()
		_, err = outside.ExecContext(ctx, addOne)
		check("in a transaction begun outside", err)
		if err := outside.Rollback(); err != nil {
			t.Error(err)
		}
		pinned := r.conn()
		rawExec(r, pinned, "SELECT 1")
		_, err = pinned.ExecContext(ctx, addOne)
		check("on a pinned connection", err)
		if tx, err := pinned.BeginTx(ctx, nil); err != nil {
			check("BeginTx on a pinned connection", err)
		} else {
			_, err := tx.ExecContext(ctx, addOne)
			check("in a transaction on a pinned connection", err)
			_ = tx.Rollback()
		}
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		r.wantBalances(100)
		r.wantNoLog()
	})
}

func TestStagedAQueryRunsAtOnceAndDoesNotSeeStagedWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		see := func(on interface {
			QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		}, want int,
		) {
			t.Helper()
			var n int
			if err := on.QueryRowContext(ctx, r.q("SELECT balance FROM account WHERE id = ?"), 1).Scan(&n); err != nil || n != want {
				t.Errorf("the query gives %d, %v; want %d", n, err, want)
			}
		}
		r.stage(ctx, r.wrapped, setBalance, 7, 1)
		see(r.wrapped, 100)
		tx, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, tx, setBalance, 8, 1)
		see(tx, 100)
		r.exec("UPDATE account SET balance = 55 WHERE id = 1")
		see(tx, 55)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		see(r.wrapped, 55)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		see(r.wrapped, 8)
	})
}

func TestStagedALocalTransactionRecordsUntilItsCommit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0, 0, 0, 0)
		ctx, st := staged(t)
		begin := func() *sql.Tx {
			t.Helper()
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			return tx
		}
		committed := begin()
		kept := []sql.Result{r.stage(ctx, committed, increment, 1, 1)}
		r.must(committed, "SAVEPOINT a")
		dropped := []sql.Result{r.stage(ctx, committed, increment, 10, 1)}
		r.must(committed, "SAVEPOINT b")
		dropped = append(dropped, r.stage(ctx, committed, increment, 100, 1))
		r.must(committed, "ROLLBACK TO SAVEPOINT a")
		r.must(committed, "SAVEPOINT c")
		kept = append(kept, r.stage(ctx, committed, increment, 1000, 1))
		r.must(committed, "RELEASE SAVEPOINT c")
		// It belongs to the group without its context too.
		r.must(committed, increment, 10000, 1)

		rolledBack := begin()
		dropped = append(dropped, r.stage(ctx, rolledBack, increment, 1, 2))
		if err := rolledBack.Rollback(); err != nil {
			t.Fatal(err)
		}
		// Between BeginTx and Commit others are staged before it.
		kept = append(kept, r.stage(ctx, r.wrapped, increment, 1, 3))
		if err := committed.Commit(); err != nil {
			t.Fatal(err)
		}
		left := begin() // is still open at End
		dropped = append(dropped, r.stage(ctx, left, increment, 1, 4))
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := left.Commit(); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Commit after End: %v, want ErrEnded", err)
		}
		r.wantBalances(11001, 0, 1, 0)
		for _, res := range kept {
			wantRows(t, res, 1)
		}
		for _, res := range dropped {
			wantResult(t, res, bedsql.ErrStaged)
			if _, err := res.RowsAffected(); strings.Contains(err.Error(), "after End") {
				t.Errorf("of a write that was dropped RowsAffected says: %v", err)
			}
		}
		r.wantNoLog()
		// The connection is as good as before.
		r.must(r.wrapped, increment, 1, 2)
		r.wantBalances(11001, 1, 1, 0)
	})
}

func TestStagedALocalTransactionHasTheGuaranteeOfItsBeginTx(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var receipts []bool
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func(units []*txlog.Unit) error {
				for _, u := range units {
					receipts = append(receipts, u.Receipt != "")
				}
				return nil
			}}
		})
		r.account(100)
		ctx, st := staged(t)
		tx, err := r.wrapped.BeginTx(bedsql.WithGuarantee(ctx, bedsql.ExactlyOnce), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, increment, 1, 1)
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Fatal(err)
		}
		if len(receipts) != 1 || !receipts[0] {
			t.Errorf("units with a receipt: %v, want one", receipts)
		}
		r.wantBalances(101)
	})
}

func TestStagedWhatTheCallerDoesWithItsBytesAfterExecChangesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		blob := map[string]string{testdb.DriverMySQL: "BLOB", testdb.DriverPostgres: "BYTEA", testdb.DriverSQLite: "BLOB"}[db.Driver]
		r.exec("CREATE TABLE file (id INT PRIMARY KEY, content " + blob + ")")
		ctx, st := staged(t)
		content := []byte("before\x00\xff")
		r.stage(ctx, r.wrapped, "INSERT INTO file VALUES (?, ?)", 1, content)
		copy(content, "XXXXXX")
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		var got []byte
		if err := r.bare.QueryRow("SELECT content FROM file").Scan(&got); err != nil || string(got) != "before\x00\xff" {
			t.Errorf("%q, %v; want what it was at Exec", got, err)
		}
	})
}

func TestStagedDataSourcesWithDifferentLogsAreRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		one, other := newRig(t, db), newRig(t, freshLike(t, db))
		one.account(100)
		other.account(100)
		ctx, st := staged(t)
		one.stage(ctx, one.wrapped, increment, 1, 1)
		if _, err := other.wrapped.ExecContext(ctx, other.q(increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "different transaction logs") {
			t.Errorf("Exec: %v, want ErrStaged", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		one.wantBalances(101)
		other.wantBalances(100)
	})
}

func TestStagedADataSourceOpenedWithDifferentSettingsIsRefused(t *testing.T) {
	t.Parallel()
	for driver, param := range map[string][2]string{
		testdb.DriverMySQL: {"loc", "Asia/Tokyo"}, testdb.DriverPostgres: {"TimeZone", "Asia/Tokyo"}, testdb.DriverSQLite: {"_time_format", "sqlite"},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := map[string]func(testing.TB) testdb.DB{testdb.DriverMySQL: testdb.MySQL, testdb.DriverPostgres: testdb.Postgres, testdb.DriverSQLite: testdb.SQLite}[driver](t)
			r := newRig(t, db)
			r.account(100)
			other := r.open(withParam(db, param[0], param[1]).DSN)
			ctx, st := staged(t)
			r.stage(ctx, r.wrapped, increment, 1, 1)
			if _, err := other.ExecContext(ctx, r.q(increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "settings") {
				t.Errorf("Exec: %v, want ErrStaged", err)
			}
			// The same settings through another pool are the same data source.
			r.stage(ctx, r.open(db.DSN), increment, 1, 1)
			if err := st.End(context.Background()); err != nil {
				t.Error(err)
			}
			r.wantBalances(102)
		})
	}
}

func TestStagedMoreWritesThanALogTakesAreRefusedWhenTheyAreStaged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, func(c *bedsql.Config) { c.MaxUnitStatements, c.MaxUnitBytes = 3, 2000 })
		r.account(100)
		ctx, st := staged(t)
		for range 2 {
			r.stage(ctx, r.wrapped, increment, 1, 1)
		}
		tx, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, tx, increment, 10, 1)
		r.stage(ctx, tx, increment, 10, 1)
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "MaxUnitStatements") {
			t.Errorf("Commit of the fourth: %v, want ErrStaged that names the setting", err)
		}
		if _, err := r.wrapped.ExecContext(ctx, r.q("/* "+strings.Repeat("x", 2000)+" */"+increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "MaxUnitBytes") {
			t.Errorf("a large one: %v, want ErrStaged that names the setting", err)
		}
		r.stage(ctx, r.wrapped, increment, 1, 1)
		if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("the fourth: %v, want ErrStaged", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(103)
		r.wantNoLog()
	})
}

func TestStagedLogDownAtEndMeansNothingAnywhere(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, logDB testdb.DB) {
		p := testproxy.New(t, logDB.Addr())
		rigs := newRigs(t, logDB.Via(p.Addr()))
		ctx, st := staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
		}
		p.Refuse()
		p.CutAll()
		err := st.End(context.Background())
		if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("End: %v, want ErrNotLogged", err)
		}
		p.Accept()
		if again := st.End(context.Background()); !errors.Is(again, bedsql.ErrNotLogged) {
			t.Errorf("End again: %v, want the same", again)
		}
		for i, r := range rigs {
			wantResult(t, results[i], bedsql.ErrNotLogged)
			r.wantBalances(100)
		}
		rigs[0].wantNoLog()
	})
}

func TestStagedLogInDoubtAtEndIsPendingAndNothingIsSent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB, exactlyOnce, func(c *bedsql.Config) {
			c.Lease = 500 * time.Millisecond
			if _, ok := c.Storage.(*inDoubtStorage); !ok {
				c.Storage = &inDoubtStorage{c.Storage}
			}
		})
		ctx, st := staged(t)
		var results []sql.Result
		for _, r := range rigs {
			results = append(results, r.stage(ctx, r.wrapped, increment, 1, 1))
		}
		err := st.End(context.Background())
		wantPending(t, err)
		for i, r := range rigs {
			wantResult(t, results[i], bedsql.ErrPending)
			r.wantBalances(100)
			if name := dataSourceOf(t, r.db); !strings.Contains(err.Error(), name) {
				t.Errorf("End does not name %s: %v", name, err)
			}
		}
		if n := len(rigs[0].logs()); n != 3 {
			t.Fatalf("the log holds %d units, want 3", n)
		}
		rigs[0].drain(jobForAll(t, rigs))
		for _, r := range rigs {
			r.wantBalances(101)
		}
	})
}

// inDoubtStorage loses the answer to what was added.
type inDoubtStorage struct{ txlog.Storage }

func (s *inDoubtStorage) Add(ctx context.Context, lease time.Duration, units ...*txlog.Unit) error {
	if err := s.Storage.Add(ctx, lease, units...); err != nil {
		return err
	}
	return fmt.Errorf("%w: the answer is lost", txlog.ErrInDoubt)
}

func TestStagedWhatEndHasLoggedIsDeliveredWhateverBecomesOfItsCaller(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		ending, end := context.WithCancel(context.Background())
		rigs := newRigs(t, logDB, exactlyOnce, func(c *bedsql.Config) {
			if _, ok := c.Storage.(*hookedStorage); !ok {
				c.Storage = &hookedStorage{Storage: c.Storage, afterAdd: end}
			}
		})
		ctx, st := staged(t)
		for _, r := range rigs {
			r.stage(ctx, r.wrapped, increment, 1, 1)
			r.stage(ctx, r.wrapped, increment, 1, 2)
		}
		err := st.End(ending)
		wantPending(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("End: %v, want it to say that its context ended", err)
		}
		rigs[0].drain(jobForAll(t, rigs))
		for _, r := range rigs {
			r.wantBalances(101, 101)
		}
	})
}

func TestStagedADataSourceThatIsDownAtEndIsLeftToTheJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			logDB := testdb.SQLite(t)
			var shared txlog.Storage
			share := func(c *bedsql.Config) {
				if shared == nil {
					shared = c.Storage
				}
				c.Storage = shared
			}
			up := newRigWithLog(t, testdb.SQLite(t), logDB, share, guarantee)
			up.account(100)
			down := newRigWithLog(t, freshLike(t, db), logDB, share, guarantee)
			down.account(100, 100)
			p := testproxy.New(t, down.db.Addr())
			down.db = down.db.Via(p.Addr())
			down.wrapped = down.open(down.db.DSN)
			p.Refuse() // and has never been reached: even its table of receipts is missing
			ctx, st := staged(t)
			var results []sql.Result
			for id := range 2 {
				results = append(results, down.stage(ctx, down.wrapped, increment, 1, id+1))
			}
			applied := up.stage(ctx, up.wrapped, increment, 1, 1)
			wantPending(t, st.End(context.Background()))
			wantRows(t, applied, 1)
			for _, res := range results {
				wantResult(t, res, bedsql.ErrPending)
			}
			up.wantBalances(101)
			down.wantBalances(100, 100)
			u := down.wantLeft(2)
			if u.TransactionID != st.ID() || u.Parked || len(u.Statements) != 2 {
				t.Errorf("what is left in the log: %+v", u)
			}
			p.Accept()
			if report := down.runOnce(); report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			down.wantBalances(101, 101)
			down.wantNoLog()
		})
	})
}

// Its table of receipts could not be looked for when the write was staged.
func TestStagedADataSourceThatIsUpAgainAtEndIsDelivered(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce)
		r.account(100)
		p.Refuse()
		ctx, st := staged(t)
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		p.Accept()
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantRows(t, res, 1)
		r.wantBalances(101)
		r.wantNoLog()
	})
}

func TestStagedEndIsForManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		res := r.stage(ctx, r.wrapped, increment, 1, 1)
		refusedOne := r.stage(ctx, r.wrapped, increment, 1, 1)
		var all sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			all.Go(func() {
				errs[i] = st.End(context.Background())
				if _, err := res.RowsAffected(); err != nil {
					t.Errorf("after End RowsAffected says %v", err)
				}
				st.Discard() // does nothing any more
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		wantRows(t, refusedOne, 1)
		r.wantBalances(102)
	})
}

func TestStagedExecDuringEndIsRecordedOrRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const callers, each = 4, 50
		r := newRig(t, db, exactlyOnce)
		r.account(0)
		ctx, st := staged(t)
		var (
			all      sync.WaitGroup
			mu       sync.Mutex
			recorded []sql.Result
		)
		begun := make(chan struct{}, callers)
		for range callers {
			all.Go(func() {
				for i := range each {
					res, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, 1)
					switch {
					case err == nil:
						mu.Lock()
						recorded = append(recorded, res)
						mu.Unlock()
					case !errors.Is(err, bedsql.ErrEnded):
						t.Error(err)
					}
					if i == 1 {
						begun <- struct{}{}
					}
				}
			})
		}
		<-begun
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		all.Wait()
		r.wantBalances(len(recorded))
		for _, res := range recorded {
			wantRows(t, res, 1)
		}
		r.wantNoLog()
	})
}

func TestStagedWhatIsSkippedOrNoDMLRunsAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		ctx, st := staged(t)
		r.stage(ctx, r.wrapped, increment, 1, 1)
		wantRows(t, r.stage(bedsql.Skip(ctx), r.wrapped, increment, 1, 2), 1)
		tx, err := r.wrapped.BeginTx(bedsql.Skip(ctx), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, increment, 1, 2)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100, 102)
		r.stage(ctx, r.wrapped, "CREATE TABLE made (id INT PRIMARY KEY)")
		r.exec("INSERT INTO made VALUES (1)")
		recording, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, recording, increment, 1, 1)
		r.stage(ctx, recording, "CREATE TABLE made_inside (id INT PRIMARY KEY)")
		r.exec("INSERT INTO made_inside VALUES (1)")
		if err := recording.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(102, 102)
	})
}

func TestStagedPreparedStatementsRecord(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		x := openSqlx(t, db, r.register())
		ctx, st := staged(t)
		stmt, err := x.PreparexContext(ctx, r.q(increment))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stmt.Close() }()
		named, err := x.PrepareNamedContext(ctx, "UPDATE account SET balance = balance + :by WHERE id = :id")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = named.Close() }()
		first, err := stmt.ExecContext(ctx, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		second, err := named.ExecContext(ctx, map[string]any{"by": 10, "id": 1})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := x.BeginTxx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		third, err := tx.StmtxContext(ctx, stmt).ExecContext(ctx, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(211)
		for _, res := range []sql.Result{first, second, third} {
			wantRows(t, res, 1)
		}
		// Outside of it the same statement runs at once.
		if _, err := stmt.Exec(1, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(212)
	})
}

// Item has a key of its own: a generated id would come by RETURNING on
// PostgreSQL, which cannot be staged.
type Item struct {
	ID   string `gorm:"primaryKey;size:40"`
	Name string `gorm:"size:40"`
}

func TestStagedGormTransactionsRecord(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, mode := range gormModes {
			t.Run(mode.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db))
				g := openGorm(t, r.db.Driver, r.register(), r.db.DSN, mode)
				if err := g.AutoMigrate(&Item{}); err != nil {
					t.Fatal(err)
				}
				ctx, st := staged(t)
				g = g.WithContext(ctx)
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				create := func(on *gorm.DB, id string) error { return on.Create(&Item{ID: id, Name: "new"}).Error }
				must(create(g, "a"))
				must(g.Transaction(func(tx *gorm.DB) error {
					must(create(tx, "b"))
					inner := tx.Transaction(func(tx *gorm.DB) error {
						must(create(tx, "dropped"))
						return errors.New("changed my mind")
					})
					if inner == nil {
						t.Error("the nested transaction succeeded")
					}
					return tx.Transaction(func(tx *gorm.DB) error { return create(tx, "c") })
				}))
				_ = g.Transaction(func(tx *gorm.DB) error {
					must(create(tx, "dropped too"))
					return errors.New("changed my mind")
				})
				must(g.Model(&Item{}).Where("id = ?", "a").Update("name", "changed").Error)
				if n := r.count("SELECT COUNT(*) FROM items"); n != 0 {
					t.Errorf("there are %d rows before End", n)
				}
				must(st.End(context.Background()))
				var all []Item
				must(g.Order("id").Find(&all).Error)
				if fmt.Sprint(all) != "[{a changed} {b new} {c new}]" {
					t.Errorf("there are %v", all)
				}
				r.wantNoLog()
			})
		}
	})
}

func TestStagedGormModelsWhoseIDsAreGeneratedAreRefused(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		g := openGorm(t, db.Driver, r.register(), db.DSN, gormModes[0])
		if err := g.AutoMigrate(&Author{}, &Book{}); err != nil {
			t.Fatal(err)
		}
		ctx, st := staged(t)
		author := Author{Name: "a"}
		err, rows := g.WithContext(ctx).Create(&author).Error, 0
		if testdb.MySQLPath() {
			// MySQL has no RETURNING: gorm asks the result for the id, which a staged
			// write does not have yet, and leaves the model without one.
			if rows = 1; err != nil || author.ID != 0 {
				t.Errorf("Create: %v, id %d", err, author.ID)
			}
		} else if !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("Create: %v, want ErrStaged", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		if n := r.count("SELECT COUNT(*) FROM authors"); n != rows {
			t.Errorf("there are %d authors, want %d", n, rows)
		}
	})
}

func TestStagedAReadOnlyTransactionIsBegun(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		tx, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it has a snapshot
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100 {
				t.Errorf("the query gives %d, %v; want 100", n, err)
			}
			r.exec("UPDATE account SET balance = 7")
		}
		if _, err := tx.ExecContext(ctx, addOne); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("a write in it: %v, want ErrStaged", err)
		}
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Error(err)
		}
		r.wantBalances(7)
	})
}

func TestStagedAConnectionToAnInMemoryDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	pool := r.open("file::memory:?bedDataSource=memory")
	pool.SetMaxOpenConns(1)
	r.must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
	ctx, st := staged(t)
	if _, err := pool.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)"); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), ":memory:") {
		t.Errorf("Exec: %v, want ErrStaged: a connection for the delivery would reach another database", err)
	}
	if err := st.End(context.Background()); err != nil {
		t.Error(err)
	}
	r.wantNoLog()
}

func TestStagedConnectionsForDeliveryAreBoundedAndClosedWithTheDB(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		const groups, most = 40, 32
		r, p := newRigBehindProxy(t, db, exactlyOnce)
		r.receiptTable()
		r.account(0, 0)
		r.wrapped.SetMaxIdleConns(0)
		end := func() (done func()) {
			t.Helper()
			var all sync.WaitGroup
			for range groups {
				all.Go(func() {
					ctx, st, err := bedsql.Begin(context.Background(), bedsql.Staged())
					if err != nil {
						t.Error(err)
						return
					}
					for id := range 2 {
						if _, err := r.wrapped.ExecContext(ctx, r.q(increment), 1, id+1); err != nil {
							t.Error(err)
						}
					}
					if err := st.End(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			return all.Wait
		}
		// The table of receipts is looked for by the first write.
		ctx, st := staged(t)
		r.stage(ctx, r.wrapped, increment, 1, 1)
		st.Discard()
		eventually(t, "nothing is open", func() bool { return p.Open() == 0 })
		free := r.blockRow(1)
		done := end()
		eventually(t, "all groups are logged", func() bool { return r.left() == 2*groups })
		eventually(t, "all connections are in use", func() bool { return p.Open() >= most })
		if n := p.Open(); n > most {
			t.Errorf("%d connections are in use, want %d at the most", n, most)
		}
		free()
		done()
		r.wantBalances(groups, groups)
		// A stale connection is not met a second time, however many there are.
		p.CutAll()
		end()()
		r.wantBalances(2*groups, 2*groups)
		r.wantNoLog()
		if err := r.wrapped.Close(); err != nil {
			t.Error(err)
		}
		eventually(t, "all connections are closed", func() bool { return p.Open() == 0 })
	})
}
