package txlog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// group makes a group of one part with n statements.
func group(n int) (k, f *entry.Unit) {
	id := entry.NewID()
	f = &entry.Unit{ID: entry.NewID(), TransactionID: id, DataSource: "stock", Receipt: "r"}
	k = &entry.Unit{ID: id, TransactionID: id, DataSource: "stock", Undo: &entry.Undo{Parts: []entry.Part{{Unit: f.ID, Receipt: "r", DataSource: "stock"}}}}
	for range n {
		f.Statements = append(f.Statements, entry.Statement{SQL: "UPDATE a", Part: 1})
		k.Statements = append(k.Statements, entry.Statement{SQL: "UPDATE b", Part: 1})
	}
	return k, f
}

// A failure to record a decision does not prevent the decision.
func TestDecisionsDoNotDependOnTheTableOfAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		k, f := group(1)
		u := &entry.Unit{ID: entry.NewID(), DataSource: "stock", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
		if err := errors.Join(log.Add(t.Context(), time.Hour, f, k), log.Add(t.Context(), time.Hour, u), log.Release(t.Context(), u, entry.Verdict{Park: true})); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Open(t).Exec("DROP TABLE bed_attempt"); err != nil {
			t.Fatal(err)
		}
		if turned, err := log.Compensate(t.Context(), k.ID, time.Hour, "refused"); err != nil || !turned.Compensating() {
			t.Errorf("turned: %+v, %v", turned, err)
		}
		if err := log.Discard(t.Context(), u.ID); err != nil {
			t.Errorf("discarded: %v", err)
		}
		if _, err := log.Get(t.Context(), u.ID); !errors.Is(err, txlog.ErrNotFound) {
			t.Errorf("what is discarded: %v", err)
		}
	})
}

// The answer to a decision about a group is lost, and the log finds out the outcome.
func TestADecisionAboutAGroupIsMadeOnceThoughItsAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := fresh(t)
			proxy := testproxy.New(t, db.Addr())
			log, err := txlog.Open(t.Context(), db.Driver, db.Via(proxy.Addr()).DSN, txlog.WithMaxConns(4))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			executes := testdb.By[func([]byte) bool]{MySQL: testproxy.MySQLExecute, Postgres: testproxy.PostgresExecute, SQLite: nil}.For(name)

			k, f := group(3)
			if err := log.Add(t.Context(), time.Hour, f, k); err != nil {
				t.Fatal(err)
			}
			struck := proxy.CutAfter(testproxy.Commit)
			turned, err := log.Compensate(t.Context(), k.ID, time.Hour, "refused")
			testproxy.Await(t, struck)
			if err != nil || !turned.Compensating() || len(turned.Statements) != 3 || turned.Lease.Over() {
				t.Fatalf("got %+v, %v", turned, err)
			}
			if err := log.Complete(t.Context(), k); !errors.Is(err, txlog.ErrCompensated) {
				t.Errorf("completed after it turned: %v", err)
			}
			if err := log.Remove(t.Context(), turned); err != nil {
				t.Fatalf("it is not the caller's: %v", err)
			}

			for _, n := range []int{1, 300} { // by one statement, and in a local transaction
				k, f := group(n)
				if err := log.Add(t.Context(), time.Hour, f, k); err != nil {
					t.Fatal(err)
				}
				if err := log.Remove(t.Context(), f); err != nil {
					t.Fatal(err)
				}
				match := executes
				if n > 256 {
					match = testproxy.Commit
				}
				struck := proxy.CutAfter(match)
				err := log.Complete(t.Context(), k)
				testproxy.Await(t, struck)
				if err != nil && !errors.Is(err, txlog.ErrNotFound) { // it is gone: the receipts tell how
					t.Errorf("completing a group of %d statements: %v", n, err)
				}
				if _, err := log.Compensate(t.Context(), k.ID, 0, "too late"); !errors.Is(err, txlog.ErrNotFound) {
					t.Errorf("turned after it was completed: %v", err)
				}
			}
		})
	}
}

// Compensating does not conflict with callers that remove, renew and claim the same units.
func TestGroupsTurnWhileTheirUnitsAreWrittenTo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		const groups = 24
		var backs, forwards []*entry.Unit
		for range groups {
			k, f := group(2)
			backs, forwards = append(backs, k), append(forwards, f)
		}
		if err := log.Add(t.Context(), time.Hour, append(backs, forwards...)...); err != nil {
			t.Fatal(err)
		}
		renewed := make([]*entry.Unit, groups) // a unit is for one call at a time
		for i, f := range forwards {
			u := *f
			renewed[i] = &u
		}
		ended := make(chan error, 3)
		go func() {
			for _, k := range backs {
				if _, err := log.Compensate(t.Context(), k.ID, 0, "no"); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		go func() {
			_, err := log.Renew(t.Context(), time.Hour, renewed...)
			ended <- err
		}()
		go func() {
			err := log.Remove(t.Context(), forwards...)
			if errors.Is(err, txlog.ErrLeaseLost) {
				err = nil
			}
			ended <- err
		}()
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		left, err := log.List(t.Context(), txlog.Filter{})
		if err != nil || len(left) != groups {
			t.Fatalf("%d units are left, want %d (%v)", len(left), groups, err)
		}
		for _, u := range left {
			if !u.Compensating() || u.Leased {
				t.Errorf("got %+v", u)
			}
		}
	})
}

// An older program reads parameters as a list of values: it does not take these for one,
// and parks their unit.
func TestAnOlderJobCannotReadTheStatementsOfAGroup(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	k, f := group(2)
	if err := log.Add(t.Context(), time.Hour, f, k); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Open(t).QueryContext(t.Context(), "SELECT parameters FROM transaction_log")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var parameters string
		if err := rows.Scan(&parameters); err != nil {
			t.Fatal(err)
		}
		if values, err := entry.DecodeParams(parameters); err == nil {
			t.Errorf("%s is read as %v", parameters, values)
		}
	}
	if n != 4 || rows.Err() != nil {
		t.Errorf("%d rows, %v", n, rows.Err())
	}
}
