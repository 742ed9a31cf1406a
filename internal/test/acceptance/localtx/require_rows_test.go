package localtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// take changes no row at balance 0: for a database that is no error.
const take = "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= 1"

var one = bedsql.RequireRows(context.Background(), 1)

// wantUnmet expects a refusal for the number of changed rows.
func wantUnmet(t testing.TB, err error, want, got int64) {
	t.Helper()
	var rows *bedsql.RowsError
	if !errors.As(err, &rows) || rows.Want != want || rows.Got != got {
		t.Errorf("%v, want a RowsError of %d rows instead of %d", err, got, want)
	}
	if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeRefused {
		t.Errorf("the outcome of %v is %v, want refused", err, o)
	}
}

func TestRequiredRowsDecideAWrite(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, db, guarantee)
			r.Account(100, 0)
			prepared, err := r.Wrapped.Prepare(r.Q(take))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = prepared.Close() }()
			left := 100
			for _, logging := range []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure} {
				ctx := bedsql.WithLogging(context.Background(), logging)
				for way, exec := range map[string]func(ctx context.Context, id int) (sql.Result, error){
					"text": func(ctx context.Context, id int) (sql.Result, error) {
						return r.Wrapped.ExecContext(ctx, r.Q(take), 1, id)
					},
					"prepared": func(ctx context.Context, id int) (sql.Result, error) { return prepared.ExecContext(ctx, 1, id) },
					"no parameters": func(ctx context.Context, id int) (sql.Result, error) {
						return r.Wrapped.ExecContext(ctx, fmt.Sprintf("UPDATE account SET balance = balance - 1 WHERE id = %d AND balance >= 1", id))
					},
				} {
					for range 2 {
						res, err := exec(bedsql.RequireRows(ctx, 1), 1)
						if err != nil {
							t.Fatalf("%s, %v: %v", way, logging, err)
						}
						if n, err := res.RowsAffected(); n != 1 || err != nil {
							t.Errorf("%s: %d rows, %v", way, n, err)
						}
						if _, err := exec(bedsql.AtLeastRows(ctx, 1), 2); true {
							wantUnmet(t, err, 1, 0)
						}
						if _, err := exec(bedsql.RequireRows(ctx, 0), 1); true {
							wantUnmet(t, err, 0, 1)
						}
						if _, err := exec(bedsql.RequireRows(ctx, 0), 2); err != nil {
							t.Errorf("%s, of no rows: %v", way, err)
						}
						left--
						r.WantBalances(left, 0)
					}
				}
			}
			r.WantNoLog()
			if n := r.Counters.Refused.Load(); n != 3*3*2*2 {
				t.Errorf("%d writes were counted as refused, want 36", n)
			}
		})
	})
}

// checked is the message of a write that commits only after changing the required number of rows.
func checked(message []byte) bool {
	return testproxy.Text("commit")(message) || testproxy.Text("WITH bed_write AS")(message)
}

func TestRequiredRowsAreCheckedAgainByRetries(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		rig.EachServer(t, func(t *testing.T, db testdb.DB) {
			r, p := rig.NewBehindProxy(t, db, guarantee)
			c := rig.CommitsOf(p)
			r.Account(2)
			for range 2 { // the first dials
				if _, err := r.Wrapped.ExecContext(one, r.Q(take), 1, 1); err != nil {
					t.Fatal(err)
				}
				r.Exec("UPDATE account SET balance = 2")
			}
			struck := p.CutBefore(func(m []byte) bool {
				return testproxy.MySQLExecute(m) || testproxy.PostgresExecute(m) || c.Match(m) || checked(m)
			})
			if _, err := r.Wrapped.ExecContext(one, r.Q(take), 1, 1); err != nil {
				t.Error(err)
			}
			<-struck
			r.WantBalances(1)
			r.WantNoLog()
		})
	})
}

// The lost attempt took the last one, so that the next finds nothing: a no would be a
// guess.
func TestUnmetRowsAfterAMaybeAreNoRefusal(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		r.Must(r.Wrapped, rig.SetBalance, 1, 1) // dials
		struck := p.CutAfter(checked)
		_, err := r.Wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		var rows *bedsql.RowsError
		if pending := rig.WantPending(t, err); !pending.Parked || !errors.As(err, &rows) {
			t.Errorf("%v, want it parked with its RowsError", err)
		}
		if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeAccepted {
			t.Errorf("the outcome is %v, want accepted", o)
		}
		if u := r.WantOneLog(); !u.Parked || !u.InDoubt || !strings.Contains(u.LastError, "required exactly 1 row, changed 0") {
			t.Errorf("the log holds %+v, want it parked in doubt, with the rows", u)
		}
		r.WantBalances(0)
	})
}

func TestJobKeepsTheDoubtAboutUnmetRows(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1)
		r.Must(r.Wrapped, rig.SetBalance, 1, 1) // dials
		struck := p.CutAfter(checked)
		_, err := r.Wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		rig.WantPending(t, err)
		if report := r.RunOnce(); report.Parked != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if u := r.WantOneLog(); !u.Parked || !u.InDoubt {
			t.Errorf("the log holds %+v, want it parked in doubt", u)
		}
		r.WantBalances(0)
	})
}

func TestReceiptDecidesUnmetRowsAfterAMaybe(t *testing.T) {
	t.Parallel()
	rig.EachProxied(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, c *rig.Commits) {
		r.Account(1)
		r.Must(r.Wrapped, rig.SetBalance, 1, 1) // dials
		struck := p.CutAfter(c.Match)
		_, err := r.Wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		if err != nil {
			t.Error(err)
		}
		r.WantBalances(0)
		r.WantNoLog()
	})
}

func TestUnmetRowsRollBackALocalTransaction(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, db, guarantee)
			r.Wrapped.SetMaxOpenConns(1)
			r.Account(5, 0)
			tx := r.Begin()
			r.Must(tx, take, 1, 1)
			_, err := tx.ExecContext(one, r.Q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			r.Must(tx, take, 1, 1) // what follows runs, and goes with the rest
			wantUnmet(t, tx.Commit(), 1, 0)
			r.Must(r.Wrapped, rig.SetBalance, 0, 2) // in no transaction
			r.WantBalances(5, 0)
			r.WantNoLog()
		})
	})
}

func TestRollbackToSavepointForgetsUnmetRows(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, db, guarantee)
			for name, c := range map[string]struct {
				steps []string // unmet is a write that is refused
				kept  bool
			}{
				"set before it":                     {[]string{"SAVEPOINT a", "unmet", "ROLLBACK TO SAVEPOINT a"}, true},
				"set after it":                      {[]string{"unmet", "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"}, false},
				"released and set again after it":   {[]string{"SAVEPOINT a", "unmet", "RELEASE SAVEPOINT a", "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"}, false},
				"set before one that came again":    {[]string{"SAVEPOINT a", "unmet", "SAVEPOINT b", "unmet", "ROLLBACK TO SAVEPOINT b", "ROLLBACK TO SAVEPOINT a"}, true},
				"set before the second of them":     {[]string{"unmet", "SAVEPOINT a", "unmet", "ROLLBACK TO SAVEPOINT a"}, false},
				"set before it, and the write done": {[]string{"SAVEPOINT a", "unmet", "ROLLBACK TO SAVEPOINT a", "met"}, true},
			} {
				t.Run(name, func(t *testing.T) {
					r.Exec("DROP TABLE IF EXISTS account")
					r.Account(5, 5)
					tx := r.Begin()
					r.Must(tx, take, 1, 1)
					for _, step := range c.steps {
						switch step {
						case "unmet": // it changes a row more than it may
							_, err := tx.ExecContext(one, "UPDATE account SET balance = balance + 10")
							wantUnmet(t, err, 1, 2)
						case "met":
							if _, err := tx.ExecContext(one, r.Q(take), 1, 1); err != nil {
								t.Fatal(err)
							}
						default:
							r.Must(tx, step)
						}
					}
					err := tx.Commit()
					if !c.kept {
						wantUnmet(t, err, 1, 2)
						r.WantBalances(5, 5)
					} else if err != nil {
						t.Error(err)
					} else if b := r.Balance(1) + r.Balance(2); b > 9 {
						t.Errorf("%d are there together: what was refused is applied", b)
					}
					r.WantNoLog()
				})
			}
		})
	})
}

// Whatever else would commit the transaction does not.
func TestNothingCommitsUnmetRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, query := range (testdb.By[[]string]{
			MySQL:    []string{"CREATE TABLE other (id INT)", "START TRANSACTION", "SET autocommit = 1", "UPDATE account SET balance = 1; COMMIT", "BEGIN NOT ATOMIC COMMIT; END"},
			Postgres: []string{"PREPARE TRANSACTION 'x'", "SELECT 1; COMMIT", "DO $$ BEGIN COMMIT; END $$"},
			SQLite:   []string{"UPDATE account SET balance = 1; COMMIT", "END"},
		}).For(db.Driver) {
			r := rig.New(t, rig.FreshLike(t, db))
			r.Wrapped.SetMaxOpenConns(1)
			r.Account(5, 0)
			tx := r.Begin()
			r.Must(tx, take, 1, 1)
			_, err := tx.ExecContext(one, r.Q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			if err := r.Fails(tx, query); true {
				wantUnmet(t, err, 1, 0)
			}
			_ = tx.Rollback()
			r.WantBalances(5, 0)
			r.WantNoLog()
		}
	})
}

func TestStagedUnmetRowsRefuseTheirGroup(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, db, guarantee)
			r.Account(0, 5)
			for _, writes := range []int{1, 2} {
				ctx, st := rig.Staged(t)
				res := r.Stage(bedsql.RequireRows(ctx, 1), r.Wrapped, take, 1, 1)
				if writes == 2 {
					r.Stage(ctx, r.Wrapped, take, 1, 2)
				}
				err := st.End(context.Background())
				wantUnmet(t, err, 1, 0)
				var refused *bedsql.RefusedError
				if !errors.As(err, &refused) || !refused.Removed || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
					t.Fatalf("End: %v, want a RefusedError whose entry is removed", err)
				}
				if _, err := res.RowsAffected(); true {
					wantUnmet(t, err, 1, 0)
				}
				r.WantNoLog()
				r.WantBalances(0, 5)
			}
		})
	})
}

func TestJobParksUnmetRows(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, rig.Impatient(db), guarantee, rig.NoSyncRetry)
			r.Account(5, 5, 5)
			for _, id := range []int{1, 2} { // the job delivers them together first
				free := r.BlockRow(id)
				_, err := r.Wrapped.ExecContext(one, r.Q(take), 1, id)
				free()
				rig.WantPending(t, err)
			}
			r.Exec("UPDATE account SET balance = 0 WHERE id = 1")
			if report := r.RunOnce(); report.Parked != 1 || report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			r.WantBalances(0, 4, 5)
			if u := r.WantOneLog(); !strings.Contains(u.LastError, "required exactly 1 row, changed 0") || u.InDoubt {
				t.Errorf("the log holds %+v, want the rows as its error", u)
			}
		})
	})
}

func TestKeyedRequestIncludesItsRequirement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		send := func(key string, n int64) (bool, error) {
			ctx, k := rig.Keyed(key)
			res, err := r.Wrapped.ExecContext(bedsql.RequireRows(ctx, n), r.Q(take), 1, 1)
			if err == nil {
				if got, err := res.RowsAffected(); got != n || err != nil {
					t.Errorf("%d rows, %v; want %d", got, err, n)
				}
			}
			return k.Replayed(), err
		}
		for i, replayed := range []bool{false, true} {
			again, err := send("a", 1)
			if err != nil || again != replayed {
				t.Errorf("sent %d times: %v, replayed %v", i+1, err, again)
			}
		}
		r.WantBalances(0)
		_, err := send("a", 0)
		rig.WantReused(t, "another requirement", err)
		if !strings.Contains(fmt.Sprint(err), "how many rows") {
			t.Errorf("%v does not say what differs", err)
		}
		_, err = send("b", 1)
		wantUnmet(t, err, 1, 0)
		r.Exec("UPDATE account SET balance = 1")
		if again, err := send("b", 1); err != nil || again {
			t.Errorf("after a refusal: %v, replayed %v", err, again)
		}
		// A local transaction under a key.
		for _, balance := range []int{0, 1, 0} {
			ctx, tx, k := r.BeginUnder("c")
			if !k.Replayed() {
				_, err = tx.ExecContext(bedsql.RequireRows(ctx, 1), r.Q(take), 1, 1)
			}
			committed := tx.Commit()
			if balance == 0 && err != nil {
				wantUnmet(t, err, 1, 0)
				wantUnmet(t, committed, 1, 0)
				r.Exec("UPDATE account SET balance = 1")
			} else if err != nil || committed != nil {
				t.Errorf("%v, %v", err, committed)
			}
		}
		r.WantBalances(0)
		r.WantNoLog()
	})
}

func TestReturnedRowsAreWhatIsRequired(t *testing.T) {
	t.Parallel()
	if testdb.MySQLPath() {
		t.Skip("MySQL has no RETURNING")
	}
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := rig.New(t, db, guarantee)
			r.Account(5, 5)
			const returning = "DELETE FROM account WHERE id >= ? RETURNING id"
			ids := func(on interface {
				QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
			}, from int) (n int, err error) {
				rows, err := on.QueryContext(one, r.Q(returning), from)
				if err != nil {
					return 0, err
				}
				defer func() { _ = rows.Close() }()
				for rows.Next() {
					n++
				}
				return n, rows.Err()
			}
			_, err := ids(r.Wrapped, 1)
			wantUnmet(t, err, 1, 2)
			if n := r.Count("SELECT COUNT(*) FROM account"); n != 2 {
				t.Errorf("%d rows are left of 2", n)
			}
			if n, err := ids(r.Wrapped, 2); n != 1 || err != nil {
				t.Errorf("%d rows, %v", n, err)
			}
			// By Exec its rows are counted too, as by the job.
			r.Exec("INSERT INTO account VALUES (2, 5)")
			res, err := r.Wrapped.ExecContext(one, r.Q(returning), 2)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				t.Errorf("Exec: %d rows, %v", n, err)
			}
			r.Exec("INSERT INTO account VALUES (2, 5)")
			tx := r.Begin()
			_, err = ids(tx, 1)
			wantUnmet(t, err, 1, 2)
			if err := tx.Commit(); true {
				wantUnmet(t, err, 1, 2)
			}
			tx = r.Begin()
			if n, err := ids(tx, 2); n != 1 || err != nil {
				t.Errorf("%d rows, %v", n, err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
			// Without RETURNING, the number of rows changed by a Query is unknown.
			rows, err := r.Wrapped.QueryContext(one, r.Q(take), 1, 1)
			if err == nil {
				_ = rows.Close()
			}
			wantUnmet(t, err, 1, -1)
			r.WantBalances(5)
			r.WantNoLog()
		})
	})
}

func TestRequiredRowsHoldForUnloggedWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func(units []*entry.Unit) error {
				return errors.New("nothing is to be logged")
			}}
		})
		r.Account(5, 0)
		check := func(what string, ctx context.Context, on rig.Executor, left int) {
			t.Helper()
			_, err := on.ExecContext(bedsql.RequireRows(ctx, 1), r.Q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			if _, err := on.ExecContext(bedsql.RequireRows(ctx, 1), r.Q(take), 1, 1); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if r.Balance(1) != left {
				t.Errorf("%s: the balance is %d, want %d", what, r.Balance(1), left)
			}
		}
		check("Skip", bedsql.Unlogged(context.Background()), r.Wrapped, 4)
		tx, err := r.Wrapped.BeginTx(bedsql.Unlogged(context.Background()), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, take, 1, 1)
		_, err = tx.ExecContext(one, r.Q(take), 1, 2)
		wantUnmet(t, err, 1, 0)
		wantUnmet(t, tx.Commit(), 1, 0)
		r.WantBalances(4)

		pinned := r.Conn()
		rig.RawExec(r, pinned, "SELECT 1")
		if db.Driver != testdb.DriverMySQL {
			check("pinned", context.Background(), pinned, 3)
			r.Exec("UPDATE account SET balance = 4 WHERE id = 1")
		} else if _, err := pinned.ExecContext(one, r.Q(take), 1, 1); bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("pinned: %v, want it refused before it is sent", err) // LOCK TABLES would end with a BEGIN
		}
		r.WantBalances(4)
		local, err := pinned.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := local.ExecContext(one, r.Q(take), 1, 1); err != nil {
			t.Errorf("pinned, in a local transaction: %v", err)
		}
		_, err = local.ExecContext(one, r.Q(take), 1, 2)
		wantUnmet(t, err, 1, 0)
		wantUnmet(t, local.Commit(), 1, 0)
		r.WantBalances(4, 0)
	})
}

func TestUncheckableRowsAreRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(5)
		for _, query := range (testdb.By[[]string]{
			MySQL:    []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2", "CALL p()", "EXECUTE p", "BEGIN NOT ATOMIC UPDATE account SET balance = 1; END"},
			Postgres: []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2", "CALL p()", "EXECUTE p", "DO $$ BEGIN UPDATE account SET balance = 1; END $$"},
			SQLite:   []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2"},
		}).For(db.Driver) {
			_, err := r.Wrapped.ExecContext(one, query)
			if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeRefused || !strings.Contains(err.Error(), "not sent") {
				t.Errorf("%s: %v (%v), want it refused and not sent", query, err, o)
			}
		}
		_, err := r.Wrapped.ExecContext(bedsql.RequireRows(context.Background(), -1), rig.AddOne)
		if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeRefused {
			t.Errorf("of -1 rows: %v (%v), want it refused", err, o)
		}
		for _, query := range []string{"SELECT 1", "CREATE TABLE other (id INT)"} {
			if _, err := r.Wrapped.ExecContext(one, query); err != nil {
				t.Errorf("%s: %v", query, err)
			}
		}
		// AtLeastRows(ctx, 0) takes a requirement back.
		if _, err := r.Wrapped.ExecContext(bedsql.AtLeastRows(one, 0), "UPDATE account SET balance = 1 WHERE id = 9"); err != nil {
			t.Error(err)
		}
		r.WantBalances(5)
		r.WantNoLog()
	})
}

func TestRequiredRowsCountAsTheDSNSays(t *testing.T) {
	t.Parallel()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		for param, changed := range map[string]int64{"false": 0, "true": 1} {
			db := rig.Impatient(rig.WithParam(testdb.MySQL(t), "clientFoundRows", param))
			r := rig.New(t, db, guarantee, rig.NoSyncRetry)
			r.Account(5, 0)
			same := bedsql.RequireRows(context.Background(), changed)
			if _, err := r.Wrapped.ExecContext(same, r.Q(rig.SetBalance), 5, 1); err != nil {
				t.Errorf("clientFoundRows=%s: %v", param, err)
			}
			free := r.BlockRow(1)
			_, err := r.Wrapped.ExecContext(same, r.Q(rig.SetBalance), 5, 1)
			free()
			rig.WantPending(t, err)
			if report := r.RunOnce(); report.Delivered != 1 {
				t.Errorf("clientFoundRows=%s: the job's round: %v", param, report)
			}
		}
	})
}

// The caller asked for COMMIT, and a silent server must not hold it for ever.
func TestRollbackInPlaceOfCommitIsBounded(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		proxy := testproxy.New(t, db.Addr())
		tx, err := r.Open(db.Via(proxy.Addr()).DSN).Begin()
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.ExecContext(one, r.Q(take), 1, 1)
		wantUnmet(t, err, 1, 0)
		proxy.Mute(testproxy.Text("ROLLBACK"))
		committed := make(chan error, 1)
		go func() { committed <- tx.Commit() }()
		select {
		case err := <-committed:
			wantUnmet(t, err, 1, 0)
		case <-time.After(rig.Patience):
			t.Error("Commit still waits")
			proxy.CutAll()
		}
	})
}
