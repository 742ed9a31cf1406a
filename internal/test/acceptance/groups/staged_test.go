package groups

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// jobForAll makes a job for all of the rigs; they share a log.
func jobForAll(t testing.TB, rigs []*rig.Rig) *asyncjob.Job {
	t.Helper()
	targets := asyncjob.Targets{}
	for _, r := range rigs {
		tgt := rig.TargetOf(t, r.DB)
		targets[tgt.DataSource] = tgt
	}
	return rigs[0].JobFor(targets)
}

func TestStagedNothingHappensBeforeEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			rigs := rig.News(t, testdb.NewLog(t, db.Driver), guarantee)
			ctx, st := rig.Staged(t)
			var results []sql.Result
			for range 2 {
				for _, r := range rigs {
					results = append(results, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1), r.Stage(ctx, r.Wrapped, rig.SetBalance, 7, 2))
				}
			}
			for _, res := range results {
				rig.WantResult(t, res, bedsql.ErrStaged)
			}
			for _, r := range rigs {
				r.WantBalances(100, 100)
			}
			rigs[0].WantNoLog()
			if err := st.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, r := range rigs {
				r.WantBalances(102, 7)
			}
			for i, res := range results {
				if r := rigs[i/2%3]; r.DB.Driver == testdb.DriverMySQL && i == 7 {
					rig.WantRows(t, res, 0) // MySQL counts rows that change
				} else {
					rig.WantRows(t, res, 1)
				}
			}
			rigs[0].WantNoLog()
			if err := st.End(context.Background()); err != nil {
				t.Errorf("End the second time: %v", err)
			}
			for _, r := range rigs {
				r.WantBalances(102, 7)
			}
		})
	})
}

func TestStagedEndLogsEverythingInOneInsert(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		p := testproxy.New(t, logDB.Addr())
		rigs := rig.News(t, logDB.Via(p.Addr()))
		inserts := p.Count(testproxy.Text("/* marked */"))
		ctx, st := rig.Staged(t)
		for _, r := range rigs {
			r.Stage(ctx, r.Wrapped, "/* marked */ "+rig.Increment, 1, 1)
			r.Stage(ctx, r.Wrapped, "/* marked */ "+rig.Increment, 1, 2)
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
			r.WantBalances(101, 101)
		}
	})
}

func TestStagedDataSourcesAreDeliveredSideBySide(t *testing.T) {
	t.Parallel()
	for blocked, name := range []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite} {
		t.Run(name+" is locked", func(t *testing.T) {
			t.Parallel()
			rigs := rig.News(t, testdb.NewLog(t, testdb.DriverMySQL), rig.ExactlyOnce)
			for _, r := range rigs {
				r.ReceiptTable() // it could not be created in a SQLite file that is locked
			}
			free := rigs[blocked].BlockRow(1)
			ctx, st := rig.Staged(t)
			rigs[blocked].Stage(ctx, rigs[blocked].Wrapped, rig.Increment, 1, 1)
			for _, r := range rigs {
				r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
			}
			done := make(chan error, 1)
			go func() { done <- st.End(context.Background()) }()
			for i, r := range rigs {
				if i != blocked {
					rig.Eventually(t, "the others are delivered", func() bool { return r.Balance(1) == 101 })
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
			rigs[blocked].WantBalances(102)
			rigs[0].WantNoLog()
		})
	}
}

func TestStagedDataSourceIsOneOrderedTransaction(t *testing.T) {
	t.Parallel()
	for failing, name := range []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite} {
		t.Run(name+" refuses", func(t *testing.T) {
			t.Parallel()
			rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
				rigs := rig.News(t, testdb.Postgres(t), guarantee)
				ctx, st := rig.Staged(t)
				var refused []sql.Result
				for i, r := range rigs {
					insert := r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (?, ?)", 3, 5)
					double := r.Stage(ctx, r.Wrapped, "UPDATE account SET balance = balance * 2 WHERE id = ?", 3)
					if i == failing {
						duplicate := r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
						refused = []sql.Result{insert, double, duplicate, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 2)}
					}
					r.Stage(ctx, r.Wrapped, "UPDATE account SET balance = balance + ? WHERE id = ?", 3, 3)
				}
				err := st.End(context.Background())
				var refusal *bedsql.RefusedError
				if !errors.As(err, &refusal) || errors.Is(err, bedsql.ErrPending) || !rig.HoldsDriversOwn(rigs[failing].DB, refusal.Cause) {
					t.Fatalf("End: %v, want the refusal with the driver's own error", err)
				}
				for i, r := range rigs {
					if i == failing {
						if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 0 {
							t.Error("a part of the local transaction was applied")
						}
						r.WantBalances(100, 100)
					} else {
						r.WantBalances(100, 100, 13)
					}
				}
				u := rigs[0].WantLeft(5)
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
				rigs[failing].Exec("DELETE FROM account WHERE id = 1")
				if err := rigs[0].Storage.Retry(context.Background(), u.ID); err != nil {
					t.Fatal(err)
				}
				if _, err := jobForAll(t, rigs).RunOnce(context.Background()); err != nil {
					t.Fatal(err)
				}
				rigs[failing].WantBalances(5, 101, 13)
				rigs[0].WantNoLog()
			})
		})
	}
}

func TestStagedResultsTellTheirIDsAfterEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := rig.New(t, rig.FreshLike(t, db), guarantee)
			id := testdb.By[string]{
				MySQL: "INT AUTO_INCREMENT PRIMARY KEY", Postgres: "SERIAL PRIMARY KEY", SQLite: "INTEGER PRIMARY KEY AUTOINCREMENT",
			}.For(db.Driver)
			r.Exec("CREATE TABLE item (id " + id + ", name VARCHAR(20) NOT NULL)")
			ctx, st := rig.Staged(t)
			first := r.Stage(ctx, r.Wrapped, "INSERT INTO item (name) VALUES (?)", "a")
			second := r.Stage(ctx, r.Wrapped, "INSERT INTO item (name) VALUES (?)", "b")
			both := r.Stage(ctx, r.Wrapped, "UPDATE item SET name = ?", "c")
			if err := st.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			rig.WantRows(t, both, 2)
			for i, res := range []sql.Result{first, second} {
				rig.WantRows(t, res, 1)
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
		r := rig.New(t, db)
		blob := testdb.By[string]{MySQL: "BLOB", Postgres: "BYTEA", SQLite: "BLOB"}.For(db.Driver)
		r.Exec("CREATE TABLE file (id INT PRIMARY KEY, content " + blob + ")")
		ctx, st := rig.Staged(t)
		content := []byte("before\x00\xff")
		r.Stage(ctx, r.Wrapped, "INSERT INTO file VALUES (?, ?)", 1, content)
		copy(content, "XXXXXX")
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		var got []byte
		if err := r.Bare.QueryRow("SELECT content FROM file").Scan(&got); err != nil || string(got) != "before\x00\xff" {
			t.Errorf("%q, %v; want what it was at Exec", got, err)
		}
	})
}
