package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"testing"

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
// delivered is removed after its call returned, and then wants them to be one unit.
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

// jobForAll makes a job for all of the rigs; they share a log.
func jobForAll(t testing.TB, rigs []*rig) *asyncjob.Job {
	t.Helper()
	targets := asyncjob.Targets{}
	for _, r := range rigs {
		tgt := targetOf(t, r.db)
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

func TestStagedNothingHappensBeforeEnd(t *testing.T) {
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

func TestStagedEndLogsEverythingInOneInsert(t *testing.T) {
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
			t.Errorf("the log got %d statements before End", n)
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

func TestStagedDataSourceIsOneOrderedTransaction(t *testing.T) {
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
				if !u.Parked || u.ID != refusal.EntryID || u.TransactionID != st.ID() || len(u.Statements) != 5 {
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
				// A person fixes the data and has it delivered.
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

func TestStagedResultsTellTheirIDsAfterEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := newRig(t, freshLike(t, db), guarantee)
			id := testdb.By[string]{
				MySQL: "INT AUTO_INCREMENT PRIMARY KEY", Postgres: "SERIAL PRIMARY KEY", SQLite: "INTEGER PRIMARY KEY AUTOINCREMENT",
			}.For(db.Driver)
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

func TestStagedCallerMayReuseBytesAfterExec(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		blob := testdb.By[string]{MySQL: "BLOB", Postgres: "BYTEA", SQLite: "BLOB"}.For(db.Driver)
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
