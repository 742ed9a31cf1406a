package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
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
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, db, guarantee)
			r.account(100, 0)
			prepared, err := r.wrapped.Prepare(r.q(take))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = prepared.Close() }()
			left := 100
			for _, logging := range []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure} {
				ctx := bedsql.WithLogging(context.Background(), logging)
				for way, exec := range map[string]func(ctx context.Context, id int) (sql.Result, error){
					"text": func(ctx context.Context, id int) (sql.Result, error) {
						return r.wrapped.ExecContext(ctx, r.q(take), 1, id)
					},
					"prepared": func(ctx context.Context, id int) (sql.Result, error) { return prepared.ExecContext(ctx, 1, id) },
					"no parameters": func(ctx context.Context, id int) (sql.Result, error) {
						return r.wrapped.ExecContext(ctx, fmt.Sprintf("UPDATE account SET balance = balance - 1 WHERE id = %d AND balance >= 1", id))
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
						r.wantBalances(left, 0)
					}
				}
			}
			r.wantNoLog()
			if n := r.counters.Refused.Load(); n != 3*3*2*2 {
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
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		eachServer(t, func(t *testing.T, db testdb.DB) {
			r, p := newRigBehindProxy(t, db, guarantee)
			c := commitsOf(p)
			r.account(2)
			for range 2 { // the first dials
				if _, err := r.wrapped.ExecContext(one, r.q(take), 1, 1); err != nil {
					t.Fatal(err)
				}
				r.exec("UPDATE account SET balance = 2")
			}
			struck := p.CutBefore(func(m []byte) bool {
				return testproxy.MySQLExecute(m) || testproxy.PostgresExecute(m) || c.match(m) || checked(m)
			})
			if _, err := r.wrapped.ExecContext(one, r.q(take), 1, 1); err != nil {
				t.Error(err)
			}
			<-struck
			r.wantBalances(1)
			r.wantNoLog()
		})
	})
}

// The lost attempt took the last one, so that the next finds nothing: a no would be a
// guess.
func TestUnmetRowsAfterAMaybeAreNoRefusal(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(1)
		r.must(r.wrapped, setBalance, 1, 1) // dials
		struck := p.CutAfter(checked)
		_, err := r.wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		var rows *bedsql.RowsError
		if pending := wantPending(t, err); !pending.Parked || !errors.As(err, &rows) {
			t.Errorf("%v, want it parked with its RowsError", err)
		}
		if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeAccepted {
			t.Errorf("the outcome is %v, want accepted", o)
		}
		if u := r.wantOneLog(); !u.Parked || !u.InDoubt || !strings.Contains(u.LastError, "required exactly 1 row, changed 0") {
			t.Errorf("the log holds %+v, want it parked in doubt, with the rows", u)
		}
		r.wantBalances(0)
	})
}

func TestJobKeepsTheDoubtAboutUnmetRows(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1)
		r.must(r.wrapped, setBalance, 1, 1) // dials
		struck := p.CutAfter(checked)
		_, err := r.wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		wantPending(t, err)
		if report := r.runOnce(); report.Parked != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if u := r.wantOneLog(); !u.Parked || !u.InDoubt {
			t.Errorf("the log holds %+v, want it parked in doubt", u)
		}
		r.wantBalances(0)
	})
}

func TestReceiptDecidesUnmetRowsAfterAMaybe(t *testing.T) {
	t.Parallel()
	eachProxied(t, func(t *testing.T, r *rig, p *testproxy.Proxy, c *commits) {
		r.account(1)
		r.must(r.wrapped, setBalance, 1, 1) // dials
		struck := p.CutAfter(c.match)
		_, err := r.wrapped.ExecContext(one, "UPDATE account SET balance = balance - 1 WHERE id = 1 AND balance >= 1")
		<-struck
		if err != nil {
			t.Error(err)
		}
		r.wantBalances(0)
		r.wantNoLog()
	})
}

func TestUnmetRowsRollBackALocalTransaction(t *testing.T) {
	t.Parallel()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, db, guarantee)
			r.wrapped.SetMaxOpenConns(1)
			r.account(5, 0)
			tx := r.begin()
			r.must(tx, take, 1, 1)
			_, err := tx.ExecContext(one, r.q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			r.must(tx, take, 1, 1) // what follows runs, and goes with the rest
			wantUnmet(t, tx.Commit(), 1, 0)
			r.must(r.wrapped, setBalance, 0, 2) // in no transaction
			r.wantBalances(5, 0)
			r.wantNoLog()
		})
	})
}

func TestRollbackToSavepointForgetsUnmetRows(t *testing.T) {
	t.Parallel()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, db, guarantee)
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
					r.exec("DROP TABLE IF EXISTS account")
					r.account(5, 5)
					tx := r.begin()
					r.must(tx, take, 1, 1)
					for _, step := range c.steps {
						switch step {
						case "unmet": // it changes a row more than it may
							_, err := tx.ExecContext(one, "UPDATE account SET balance = balance + 10")
							wantUnmet(t, err, 1, 2)
						case "met":
							if _, err := tx.ExecContext(one, r.q(take), 1, 1); err != nil {
								t.Fatal(err)
							}
						default:
							r.must(tx, step)
						}
					}
					err := tx.Commit()
					if !c.kept {
						wantUnmet(t, err, 1, 2)
						r.wantBalances(5, 5)
					} else if err != nil {
						t.Error(err)
					} else if b := r.balance(1) + r.balance(2); b > 9 {
						t.Errorf("%d are there together: what was refused is applied", b)
					}
					r.wantNoLog()
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
			r := newRig(t, freshLike(t, db))
			r.wrapped.SetMaxOpenConns(1)
			r.account(5, 0)
			tx := r.begin()
			r.must(tx, take, 1, 1)
			_, err := tx.ExecContext(one, r.q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			if err := r.fails(tx, query); true {
				wantUnmet(t, err, 1, 0)
			}
			_ = tx.Rollback()
			r.wantBalances(5, 0)
			r.wantNoLog()
		}
	})
}

func TestStagedUnmetRowsRefuseTheirGroup(t *testing.T) {
	t.Parallel()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, db, guarantee)
			r.account(0, 5)
			for _, writes := range []int{1, 2} {
				ctx, st := staged(t)
				res := r.stage(bedsql.RequireRows(ctx, 1), r.wrapped, take, 1, 1)
				if writes == 2 {
					r.stage(ctx, r.wrapped, take, 1, 2)
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
				r.wantNoLog()
				r.wantBalances(0, 5)
			}
		})
	})
}

func TestJobParksUnmetRows(t *testing.T) {
	t.Parallel()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, impatient(db), guarantee, noSyncRetry)
			r.account(5, 5, 5)
			for _, id := range []int{1, 2} { // the job delivers them together first
				free := r.blockRow(id)
				_, err := r.wrapped.ExecContext(one, r.q(take), 1, id)
				free()
				wantPending(t, err)
			}
			r.exec("UPDATE account SET balance = 0 WHERE id = 1")
			if report := r.runOnce(); report.Parked != 1 || report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			r.wantBalances(0, 4, 5)
			if u := r.wantOneLog(); !strings.Contains(u.LastError, "required exactly 1 row, changed 0") || u.InDoubt {
				t.Errorf("the log holds %+v, want the rows as its error", u)
			}
		})
	})
}

func TestKeyedRequestIncludesItsRequirement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		send := func(key string, n int64) (bool, error) {
			ctx, k := keyed(key)
			res, err := r.wrapped.ExecContext(bedsql.RequireRows(ctx, n), r.q(take), 1, 1)
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
		r.wantBalances(0)
		_, err := send("a", 0)
		wantReused(t, "another requirement", err)
		if !strings.Contains(fmt.Sprint(err), "how many rows") {
			t.Errorf("%v does not say what differs", err)
		}
		_, err = send("b", 1)
		wantUnmet(t, err, 1, 0)
		r.exec("UPDATE account SET balance = 1")
		if again, err := send("b", 1); err != nil || again {
			t.Errorf("after a refusal: %v, replayed %v", err, again)
		}
		// A local transaction under a key.
		for _, balance := range []int{0, 1, 0} {
			ctx, tx, k := r.beginUnder("c")
			if !k.Replayed() {
				_, err = tx.ExecContext(bedsql.RequireRows(ctx, 1), r.q(take), 1, 1)
			}
			committed := tx.Commit()
			if balance == 0 && err != nil {
				wantUnmet(t, err, 1, 0)
				wantUnmet(t, committed, 1, 0)
				r.exec("UPDATE account SET balance = 1")
			} else if err != nil || committed != nil {
				t.Errorf("%v, %v", err, committed)
			}
		}
		r.wantBalances(0)
		r.wantNoLog()
	})
}

func TestReturnedRowsAreWhatIsRequired(t *testing.T) {
	t.Parallel()
	if testdb.MySQLPath() {
		t.Skip("MySQL has no RETURNING")
	}
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		testdb.Each(t, func(t *testing.T, db testdb.DB) {
			r := newRig(t, db, guarantee)
			r.account(5, 5)
			const returning = "DELETE FROM account WHERE id >= ? RETURNING id"
			ids := func(on interface {
				QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
			}, from int) (n int, err error) {
				rows, err := on.QueryContext(one, r.q(returning), from)
				if err != nil {
					return 0, err
				}
				defer func() { _ = rows.Close() }()
				for rows.Next() {
					n++
				}
				return n, rows.Err()
			}
			_, err := ids(r.wrapped, 1)
			wantUnmet(t, err, 1, 2)
			if n := r.count("SELECT COUNT(*) FROM account"); n != 2 {
				t.Errorf("%d rows are left of 2", n)
			}
			if n, err := ids(r.wrapped, 2); n != 1 || err != nil {
				t.Errorf("%d rows, %v", n, err)
			}
			// By Exec its rows are counted too, as by the job.
			r.exec("INSERT INTO account VALUES (2, 5)")
			res, err := r.wrapped.ExecContext(one, r.q(returning), 2)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				t.Errorf("Exec: %d rows, %v", n, err)
			}
			r.exec("INSERT INTO account VALUES (2, 5)")
			tx := r.begin()
			_, err = ids(tx, 1)
			wantUnmet(t, err, 1, 2)
			if err := tx.Commit(); true {
				wantUnmet(t, err, 1, 2)
			}
			tx = r.begin()
			if n, err := ids(tx, 2); n != 1 || err != nil {
				t.Errorf("%d rows, %v", n, err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
			// Without RETURNING, the number of rows changed by a Query is unknown.
			rows, err := r.wrapped.QueryContext(one, r.q(take), 1, 1)
			if err == nil {
				_ = rows.Close()
			}
			wantUnmet(t, err, 1, -1)
			r.wantBalances(5)
			r.wantNoLog()
		})
	})
}

func TestRequiredRowsHoldForUnloggedWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func(units []*txlog.Unit) error {
				return errors.New("nothing is to be logged")
			}}
		})
		r.account(5, 0)
		check := func(what string, ctx context.Context, on executor, left int) {
			t.Helper()
			_, err := on.ExecContext(bedsql.RequireRows(ctx, 1), r.q(take), 1, 2)
			wantUnmet(t, err, 1, 0)
			if _, err := on.ExecContext(bedsql.RequireRows(ctx, 1), r.q(take), 1, 1); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if r.balance(1) != left {
				t.Errorf("%s: the balance is %d, want %d", what, r.balance(1), left)
			}
		}
		check("Skip", bedsql.Unlogged(context.Background()), r.wrapped, 4)
		tx, err := r.wrapped.BeginTx(bedsql.Unlogged(context.Background()), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, take, 1, 1)
		_, err = tx.ExecContext(one, r.q(take), 1, 2)
		wantUnmet(t, err, 1, 0)
		wantUnmet(t, tx.Commit(), 1, 0)
		r.wantBalances(4)

		pinned := r.conn()
		rawExec(r, pinned, "SELECT 1")
		if db.Driver != testdb.DriverMySQL {
			check("pinned", context.Background(), pinned, 3)
			r.exec("UPDATE account SET balance = 4 WHERE id = 1")
		} else if _, err := pinned.ExecContext(one, r.q(take), 1, 1); bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("pinned: %v, want it refused before it is sent", err) // LOCK TABLES would end with a BEGIN
		}
		r.wantBalances(4)
		local, err := pinned.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := local.ExecContext(one, r.q(take), 1, 1); err != nil {
			t.Errorf("pinned, in a local transaction: %v", err)
		}
		_, err = local.ExecContext(one, r.q(take), 1, 2)
		wantUnmet(t, err, 1, 0)
		wantUnmet(t, local.Commit(), 1, 0)
		r.wantBalances(4, 0)
	})
}

func TestUncheckableRowsAreRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(5)
		for _, query := range (testdb.By[[]string]{
			MySQL:    []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2", "CALL p()", "EXECUTE p", "BEGIN NOT ATOMIC UPDATE account SET balance = 1; END"},
			Postgres: []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2", "CALL p()", "EXECUTE p", "DO $$ BEGIN UPDATE account SET balance = 1; END $$"},
			SQLite:   []string{"UPDATE account SET balance = 1; UPDATE account SET balance = 2"},
		}).For(db.Driver) {
			_, err := r.wrapped.ExecContext(one, query)
			if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeRefused || !strings.Contains(err.Error(), "not sent") {
				t.Errorf("%s: %v (%v), want it refused and not sent", query, err, o)
			}
		}
		_, err := r.wrapped.ExecContext(bedsql.RequireRows(context.Background(), -1), addOne)
		if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeRefused {
			t.Errorf("of -1 rows: %v (%v), want it refused", err, o)
		}
		for _, query := range []string{"SELECT 1", "CREATE TABLE other (id INT)"} {
			if _, err := r.wrapped.ExecContext(one, query); err != nil {
				t.Errorf("%s: %v", query, err)
			}
		}
		// AtLeastRows(ctx, 0) takes a requirement back.
		if _, err := r.wrapped.ExecContext(bedsql.AtLeastRows(one, 0), "UPDATE account SET balance = 1 WHERE id = 9"); err != nil {
			t.Error(err)
		}
		r.wantBalances(5)
		r.wantNoLog()
	})
}

func TestRequiredRowsCountAsTheDSNSays(t *testing.T) {
	t.Parallel()
	eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		for param, changed := range map[string]int64{"false": 0, "true": 1} {
			db := impatient(withParam(testdb.MySQL(t), "clientFoundRows", param))
			r := newRig(t, db, guarantee, noSyncRetry)
			r.account(5, 0)
			same := bedsql.RequireRows(context.Background(), changed)
			if _, err := r.wrapped.ExecContext(same, r.q(setBalance), 5, 1); err != nil {
				t.Errorf("clientFoundRows=%s: %v", param, err)
			}
			free := r.blockRow(1)
			_, err := r.wrapped.ExecContext(same, r.q(setBalance), 5, 1)
			free()
			wantPending(t, err)
			if report := r.runOnce(); report.Delivered != 1 {
				t.Errorf("clientFoundRows=%s: the job's round: %v", param, report)
			}
		}
	})
}

// The caller asked for COMMIT, and a silent server must not hold it for ever.
func TestRollbackInPlaceOfCommitIsBounded(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		proxy := testproxy.New(t, db.Addr())
		tx, err := r.open(db.Via(proxy.Addr()).DSN).Begin()
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.ExecContext(one, r.q(take), 1, 1)
		wantUnmet(t, err, 1, 0)
		proxy.Mute(testproxy.Text("ROLLBACK"))
		committed := make(chan error, 1)
		go func() { committed <- tx.Commit() }()
		select {
		case err := <-committed:
			wantUnmet(t, err, 1, 0)
		case <-time.After(patience):
			t.Error("Commit still waits")
			proxy.CutAll()
		}
	})
}
