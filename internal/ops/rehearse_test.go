package ops_test

import (
	"fmt"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

func (a *amending) rehearse(t *testing.T, dataSource string) *ops.Rehearsal {
	t.Helper()
	r, err := a.Rehearse(t.Context(), dataSource)
	must(t, err)
	return r
}

func TestRehearsalNamesWhatNoLongerFitsByKind(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		if r := a.rehearse(t, "target"); r.Entries+r.Texts+len(r.Refused)+len(r.Unseen) != 0 {
			t.Errorf("an empty log: %+v", r)
		}
		fits := entry.Statement{SQL: a.set("amount", 1), Params: `["x"]`}
		for range 2 {
			must(t, a.log.Retry(t.Context(), a.stuck(t, entry.Verdict{}, nil, fits).ID))
		}
		if r := a.rehearse(t, ""); r.Entries != 2 || r.Texts != 1 || len(r.Refused)+len(r.Unseen) != 0 || r.More {
			t.Errorf("all fits: %+v", r)
		}
		oldest := a.stuck(t, entry.Verdict{}, nil, fits, a.old(t, 1))
		a.stuck(t, entry.Verdict{InDoubt: true}, receipted, a.old(t, 1), a.old(t, 2))
		a.stuck(t, entry.Verdict{}, nil, entry.Statement{SQL: "DELETE FROM gone WHERE id = 's3cr3t'"})
		a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { u.NotReplayable = "it read" }, entry.Statement{SQL: "DELETE FROM elsewhere"})
		a.write(t, "target", "DELETE FROM leased")
		r := a.rehearse(t, "")
		if r.Entries != 5 || r.Texts != 4 || len(r.Refused) != 2 || len(r.Unseen) != 0 {
			t.Fatalf("got %+v", r)
		}
		if k := r.Refused[0]; k.Entries != 2 || k.Texts != 2 || k.Oldest != oldest.ID || k.DataSource != "target" || k.Code == "" || k.Text == "" {
			t.Errorf("the first kind is %+v", k)
		}
		if k := r.Refused[1]; k.Entries != 1 || k.Texts != 1 {
			t.Errorf("the second kind is %+v", k)
		}
		_, err := a.Rehearse(t.Context(), "nowhere")
		wantError(t, "another data source", err, ops.ErrUnknownDataSource)
		a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { u.DataSource = "other" }, fits)
		if r := a.rehearse(t, "other"); r.Entries != 1 || len(r.Unseen) != 1 || r.Unseen[0].DataSource != "other" || len(r.Refused) != 0 {
			t.Errorf("one that is not configured: %+v", r)
		}
	})
}

// A text that runs would leave a row.
func TestRehearsalRunsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		a.run(t, "CREATE TABLE ran (n INT)")
		a.run(t, testdb.By[string]{
			MySQL:    "CREATE TRIGGER r BEFORE UPDATE ON account FOR EACH ROW INSERT INTO ran VALUES (1)",
			Postgres: "CREATE RULE r AS ON UPDATE TO account DO ALSO INSERT INTO ran VALUES (1)",
			SQLite:   "CREATE TRIGGER r BEFORE UPDATE ON account BEGIN INSERT INTO ran VALUES (1); END",
		}.For(db.Driver))
		for i := range 3 {
			a.stuck(t, entry.Verdict{}, nil, entry.Statement{SQL: fmt.Sprintf("%s /* %d */", a.set("amount", 1), i), Params: `["x"]`})
		}
		if r := a.rehearse(t, ""); r.Texts != 3 || len(r.Refused)+len(r.Unseen) != 0 {
			t.Fatalf("got %+v", r)
		}
		var n int
		must(t, a.at.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM ran").Scan(&n))
		if n != 0 || a.amounts(t) != "|" {
			t.Errorf("the trigger ran %d times, the target holds %s", n, a.amounts(t))
		}
	})
}

func TestRehearsalBehindAPoolerLeavesNothingPrepared(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	a := newAmending(t, db)
	through := testdb.PgBouncer(t, db, "default_pool_size=1")
	var err error
	a.target, err = targetOf.For(db.Driver)(through.DSN)
	must(t, err)
	a.Store, err = ops.New(a.log, ops.Config{Targets: map[string]delivery.Target{"target": a.target}})
	must(t, err)
	a.stuck(t, entry.Verdict{}, nil, entry.Statement{SQL: a.set("amount", 1), Params: `["x"]`})
	a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
	if r := a.rehearse(t, ""); r.Texts != 2 || len(r.Refused) != 1 || len(r.Unseen) != 0 {
		t.Fatalf("got %+v", r)
	}
	var n int
	must(t, through.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_prepared_statements WHERE statement LIKE 'UPDATE account%'").Scan(&n))
	if n != 0 {
		t.Errorf("%d statements stay prepared in the pooler's session", n)
	}
}
