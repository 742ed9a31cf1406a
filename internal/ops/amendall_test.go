package ops_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
)

// kind is the only kind of the log's errors.
func (a *amending) kind(t *testing.T) string {
	t.Helper()
	kinds, err := a.Kinds(t.Context(), ops.Filter{})
	must(t, err)
	if len(kinds.Kinds) != 1 {
		t.Fatalf("the kinds are %+v", kinds)
	}
	return kinds.Kinds[0].Key
}

func (a *amending) selectKind(t *testing.T, key string) *ops.Selection {
	t.Helper()
	sel, err := a.Select(t.Context(), ops.Filter{Kind: key, State: ops.Parked})
	must(t, err)
	return sel
}

func TestOneTextIsAmendedForAKind(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, fresh(t, db))
		must(t, a.receipts(t))
		const n = 5
		for i := range n {
			s := a.old(t, 1)
			s.Params = fmt.Sprintf(`["%d"]`, i)
			v, change := entry.Verdict{}, receipted
			if i == 0 {
				v.InDoubt = true // its receipt tells
			} else if i == 1 {
				change = nil
			}
			a.stuck(t, v, change, s)
		}
		doubtful := a.stuck(t, entry.Verdict{InDoubt: true}, nil, a.old(t, 1))
		keyed := a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { u.Receipt, u.Fingerprint = "key", "f" }, a.old(t, 1))

		sel := a.selectKind(t, a.kind(t))
		later := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
		dry, err := a.AmendAll(t.Context(), sel, ops.Amendment{SQL: a.set("amount", 1)}, ann, true)
		must(t, err)
		if dry.Tried != sel.IDs[0] || !slices.Equal(dry.Trial.Rows, []int64{1}) || len(dry.Changed) != n || a.amounts(t) != "|" {
			t.Errorf("a dry run says %+v", dry)
		}
		if a.get(t, sel.IDs[0]).Statements[0].SQL != a.set("n", 1) {
			t.Error("a dry run has amended an entry")
		}
		done, err := a.AmendAll(t.Context(), sel, ops.Amendment{SQL: a.set("amount", 1)}, ann, false)
		must(t, err)
		if len(done.Changed) != n || done.Left != 2 || len(done.Kept) != 2 || done.Statement != 1 {
			t.Errorf("got %+v", done)
		}
		for _, left := range []string{doubtful.ID, keyed.ID, later.ID} {
			if got := a.get(t, left).Statements[0].SQL; got != a.set("n", 1) {
				t.Errorf("%s was amended: %s", left, got)
			}
		}
		// All amended entries are of one kind now, regardless of their errors.
		all := a.selectKind(t, done.Kind)
		if !slices.Equal(all.IDs, done.Changed) {
			t.Errorf("of the new text are %v, amended were %v", all.IDs, done.Changed)
		}
		_, err = a.ActAll(t.Context(), ops.Retry, all, ann)
		must(t, err)
		a.deliver(t)
		if got := []byte(strings.TrimSuffix(a.amounts(t), "|")); len(got) != n || len(slices.Compact(slices.Sorted(slices.Values(got)))) != n {
			t.Errorf("the target holds %s", got)
		}

		audit, err := a.Audit(t.Context(), ops.Page{})
		must(t, err)
		i := slices.IndexFunc(audit.Records, func(r ops.Record) bool { return r.Action == ops.Amend })
		re, ok := ops.ReplacedBy(audit.Records[i])
		if !ok || audit.Records[i].Count != n || re.Old.SQL != a.set("n", 1) || re.New.SQL != a.set("amount", 1) || !slices.Equal(re.IDs, done.Changed) || re.Counted != n+2 || re.Left != 2 {
			t.Errorf("the audit says %+v", audit.Records[i])
		}
	})
}

func TestBulkAmendmentChangesAllOrNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, fresh(t, db))
		one, two := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1)), a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
		sel := a.selectKind(t, a.kind(t))
		insert := testdb.By[string]{MySQL: "INSERT INTO account VALUES (1, ?)", Postgres: "INSERT INTO account VALUES (1, $1)", SQLite: "INSERT INTO account VALUES (1, ?)"}.For(db.Driver)
		for what, c := range map[string]struct {
			to   ops.Amendment
			want error
		}{
			"another number of parameters": {ops.Amendment{SQL: "UPDATE account SET amount = '' WHERE id = 1"}, ops.ErrNotAmendable},
			"no such column":               {ops.Amendment{SQL: a.set("gone", 1)}, ops.ErrNotAmendable},
			"refused when it is tried":     {ops.Amendment{SQL: insert}, ops.ErrNotAmendable},
			"no DML":                       {ops.Amendment{SQL: "DROP TABLE account"}, ops.ErrInvalid},
			"nothing":                      {ops.Amendment{}, ops.ErrInvalid},
		} {
			_, err := a.AmendAll(t.Context(), sel, c.to, ann, false)
			wantError(t, what, err, c.want)
		}
		_, err := a.AmendAll(t.Context(), &ops.Selection{IDs: sel.IDs}, ops.Amendment{SQL: a.set("amount", 1)}, ann, false)
		wantError(t, "no kind", err, ops.ErrInvalid)
		other := a.stuck(t, entry.Verdict{}, nil, a.old(t, 2))
		_, err = a.AmendAll(t.Context(), a.selectKind(t, a.kind(t)), ops.Amendment{SQL: a.set("amount", 1)}, ann, false)
		wantError(t, "two texts", err, ops.ErrInvalid)
		for _, u := range []*entry.Unit{one, two, other} {
			if got := a.get(t, u.ID).Statements[0].SQL; !strings.Contains(got, "SET n") {
				t.Errorf("%s was amended: %s", u.ID, got)
			}
		}

		// Parameters of each are kept in the audit when all get others.
		done, err := a.AmendAll(t.Context(), sel, ops.Amendment{SQL: a.set("amount", 1), Parameters: `["new"]`}, ann, false)
		must(t, err)
		if len(done.Changed) != 2 {
			t.Errorf("got %+v", done)
		}
		read := func(audit *ops.Audit, err error) string {
			t.Helper()
			must(t, err)
			i := slices.IndexFunc(audit.Records, func(r ops.Record) bool { return r.Action == ops.Amend })
			re, _ := ops.ReplacedBy(audit.Records[i])
			text, _ := json.Marshal(re)
			return string(text)
		}
		if got := read(a.RevealAudit(t.Context(), ops.Page{}, ann)); !strings.Contains(got, `"parameters":[["s3cr3t"],["s3cr3t"]]`) || !strings.Contains(got, `["new"]`) {
			t.Errorf("revealed, the audit says %s", got)
		}
		if got := read(a.Audit(t.Context(), ops.Page{})); strings.Contains(got, "s3cr3t") || strings.Contains(got, `"new"]`) {
			t.Errorf("masked, the audit says %s", got)
		}
	})
}

func TestRehearsalNamesTheKindOfEachText(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, fresh(t, db))
		parked := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
		waiting := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: a.target.Settings, Statements: []entry.Statement{{SQL: a.set("amount", 2), Params: `["x"]`}, a.old(t, 1)}}
		must(t, a.log.Add(t.Context(), time.Hour, waiting))
		must(t, a.log.Release(t.Context(), waiting, entry.Verdict{}))
		a.stuck(t, entry.Verdict{}, nil, a.old(t, 2))
		r, err := a.Rehearse(t.Context(), "")
		must(t, err)
		if len(r.Refused) != 1 || len(r.Refused[0].Kinds) != 2 {
			t.Fatalf("got %+v", r)
		}
		k := r.Refused[0].Kinds[0]
		if got := a.list(t, ops.Filter{Kind: k.Kind}, 0); !strings.Contains(k.SQL, "SET n") || strings.Contains(k.SQL, "id = 1") || k.Entries != 2 || !slices.Equal(got, idsOf(parked, waiting)) {
			t.Errorf("%+v selects %v", k, got)
		}
	})
}
