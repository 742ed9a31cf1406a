package ops_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/bedsql/bed/bedsql/mysql"    // the log's backends
	_ "github.com/bedsql/bed/bedsql/postgres" // …
	_ "github.com/bedsql/bed/bedsql/sqlite"   // …
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// rig is a log with a store on it.
type rig struct {
	*ops.Store
	log *txlog.SQLStorage
	db  testdb.DB
}

func newRig(t testing.TB, db testdb.DB) *rig {
	t.Helper()
	log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	must(t, err)
	t.Cleanup(func() { _ = log.Close() })
	s, err := ops.New(log, ops.Config{})
	must(t, err)
	return &rig{s, log, db}
}

// write adds a unit and keeps its lease.
func (r *rig) write(t testing.TB, dataSource string, statements ...string) *entry.Unit {
	t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: dataSource}
	for _, text := range statements {
		u.Statements = append(u.Statements, entry.Statement{SQL: text, Params: `["s3cr3t",7]`})
	}
	must(t, r.log.Add(t.Context(), time.Hour, u))
	return u
}

// wait leaves a unit to the job, park to an operator, each with an error.
func (r *rig) wait(t testing.TB, u *entry.Unit, text string) *entry.Unit {
	t.Helper()
	must(t, r.log.Release(t.Context(), u, entry.Verdict{Err: text}))
	return u
}

func (r *rig) park(t testing.TB, u *entry.Unit, text string) *entry.Unit {
	t.Helper()
	must(t, r.log.Release(t.Context(), u, entry.Verdict{Err: text, Park: true, Attempts: []journal.Attempt{{At: time.Now(), Origin: "caller", Class: "refused", Err: text}}}))
	return u
}

var ann = ops.By{Who: "ann", Reason: "because"}

// list pages through the entries of a filter.
func (r *rig) list(t *testing.T, f ops.Filter, limit int) (ids []string) {
	t.Helper()
	for after := ""; ; {
		page, err := r.Entries(t.Context(), f, ops.Page{After: after, Limit: limit})
		must(t, err)
		if len(page.Entries) > limit && limit > 0 {
			t.Errorf("a page of %d has %d entries", limit, len(page.Entries))
		}
		for _, e := range page.Entries {
			ids = append(ids, e.ID)
		}
		if after = page.Next; after == "" {
			return ids
		}
	}
}

func idsOf(units ...*entry.Unit) (ids []string) {
	for _, u := range units {
		ids = append(ids, u.ID)
	}
	return ids
}

const duplicate = "Error 1062 (23000): Duplicate entry 's3cr3t' for key 'users.email'"

func TestEntriesAreFoundByEveryFilterAndPage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		tx := entry.NewID()
		a := r.write(t, "orders", "UPDATE a SET x = '100%'")
		b := r.wait(t, r.write(t, "orders", "UPDATE b SET y = ?", "UPDATE c_d SET z = ?"), "Error 1205 (HY000): Lock wait timeout exceeded")
		c := r.park(t, r.write(t, "users", "INSERT INTO users VALUES (?)"), duplicate)
		d := r.park(t, r.write(t, "orders", "INSERT INTO t VALUES (1)"), "")
		e := &entry.Unit{ID: entry.NewID(), TransactionID: tx, DataSource: "users", Statements: []entry.Statement{{SQL: "UPDATE e"}}}
		must(t, r.log.Add(t.Context(), time.Hour, e))
		f := &entry.Unit{ID: entry.NewID(), TransactionID: tx, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE f"}}}
		must(t, r.log.Add(t.Context(), time.Hour, f))
		for what, q := range map[string]struct {
			f    ops.Filter
			want []*entry.Unit
		}{
			"all":                            {ops.Filter{}, []*entry.Unit{a, b, c, d, e, f}},
			"of a data source":               {ops.Filter{DataSource: "users"}, []*entry.Unit{c, e}},
			"of none":                        {ops.Filter{DataSource: "Users"}, nil},
			"parked":                         {ops.Filter{State: ops.Parked}, []*entry.Unit{c, d}},
			"leased":                         {ops.Filter{State: ops.Leased}, []*entry.Unit{a, e, f}},
			"waiting":                        {ops.Filter{State: ops.Waiting}, []*entry.Unit{b}},
			"parked of a data source":        {ops.Filter{State: ops.Parked, DataSource: "orders"}, []*entry.Unit{d}},
			"of a transaction":               {ops.Filter{Transaction: tx}, []*entry.Unit{e, f}},
			"of its own":                     {ops.Filter{Transaction: a.ID}, []*entry.Unit{a}},
			"of no transaction":              {ops.Filter{Transaction: "x"}, nil},
			"old":                            {ops.Filter{OlderThan: time.Hour}, nil},
			"text in SQL":                    {ops.Filter{Text: "INSERT INTO"}, []*entry.Unit{c, d}},
			"text in a later statement":      {ops.Filter{Text: "SET z"}, []*entry.Unit{b}},
			"text in all statements":         {ops.Filter{Text: "= ?"}, []*entry.Unit{b}},
			"no wildcards":                   {ops.Filter{Text: "c_d"}, []*entry.Unit{b}},
			"no wildcards, percent":          {ops.Filter{Text: "100%"}, []*entry.Unit{a}},
			"nothing by a wildcard":          {ops.Filter{Text: "U%D"}, nil},
			"a backslash":                    {ops.Filter{Text: `\`}, nil},
			"a quote":                        {ops.Filter{Text: `'1`}, []*entry.Unit{a}},
			"case is distinguished":          {ops.Filter{Text: "update A"}, nil},
			"text in an error":               {ops.Filter{Text: "Lock wait"}, []*entry.Unit{b}},
			"a name in an error":             {ops.Filter{Text: "users.email"}, []*entry.Unit{c}},
			"a masked error as it is shown":  {ops.Filter{Text: "Duplicate entry '?' for"}, []*entry.Unit{c}},
			"a value in an error":            {ops.Filter{Text: "s3cr3t"}, nil},
			"a part of a value":              {ops.Filter{Text: "entry 's3"}, nil},
			"a value, for who may see it":    {ops.Filter{Text: "s3cr3t", Reveal: true}, []*entry.Unit{c}},
			"text of a state":                {ops.Filter{Text: "UPDATE", State: ops.Waiting}, []*entry.Unit{b}},
			"text of a data source":          {ops.Filter{Text: "UPDATE", DataSource: "orders"}, []*entry.Unit{a, b, f}},
			"everything at once and nothing": {ops.Filter{Text: "UPDATE", DataSource: "orders", State: ops.Parked, Transaction: tx, OlderThan: 1}, nil},
		} {
			for _, limit := range []int{1, 2, 0} {
				if got := r.list(t, q.f, limit); !slices.Equal(got, idsOf(q.want...)) {
					t.Errorf("%s, pages of %d: got %v, want %v", what, limit, got, idsOf(q.want...))
				}
			}
			for _, most := range []int{0, -1} {
				if n, err := r.Count(t.Context(), q.f, most); err != nil || n != (ops.Count{N: len(q.want)}) {
					t.Errorf("%s: counted %+v, %v, want %d", what, n, err, len(q.want))
				}
			}
		}
		for what, f := range map[string]ops.Filter{
			"state": {State: "stuck"}, "text": {Text: "a\x00b"}, "encoding": {Text: "\xff"}, "long text": {Text: strings.Repeat("x", 5000)},
			"age": {OlderThan: -1}, "kind": {Kind: "!"},
		} {
			_, err := r.Entries(t.Context(), f, ops.Page{})
			wantError(t, what, err, ops.ErrInvalid)
		}
		for _, p := range []ops.Page{{Limit: -1}, {Limit: ops.MaxPage + 1}, {After: "\x00"}, {After: strings.Repeat("f", 100)}} {
			_, err := r.Entries(t.Context(), ops.Filter{}, p)
			wantError(t, fmt.Sprintf("%+v", p), err, ops.ErrInvalid)
		}
	})
}

func TestAnEntryIsShownWithoutValues(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.park(t, r.write(t, "users", "INSERT INTO users VALUES (?)"), duplicate)
		r.park(t, r.write(t, "users", "INSERT INTO users VALUES (?)"), "Error 1644 (45000): s3cr3t is not welcome")
		page, err := r.Entries(t.Context(), ops.Filter{}, ops.Page{})
		must(t, err)
		if text := fmt.Sprintf("%+v", page.Entries[0].LastError); text != "Error 1062 (23000): Duplicate entry '?' for key 'users.email'" {
			t.Errorf("got %s", text)
		}
		for _, e := range page.Entries {
			e.Unit = nil
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, "s3cr3t") || e.State != ops.Parked || e.NextTry != nil {
				t.Errorf("got %s", text)
			}
		}
	})
}

func TestErrorKindsAreCompleteOrSaySo(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]testdb.DB{"mysql": testdb.MySQL(t), "postgres": testdb.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, db)
			r.fill(t, 100_000)
			counts := func() (all map[string]int, more bool) {
				kinds, err := r.Kinds(t.Context(), ops.Filter{})
				must(t, err)
				all = map[string]int{}
				for _, k := range kinds.Kinds {
					all[k.Code] += k.Count
					if k.More != kinds.More {
						t.Errorf("the number of %s says %v, the list %v", k.Text, k.More, kinds.More)
					}
				}
				return all, kinds.More
			}
			if all, more := counts(); more || all["1062"] != 2_000 || all["1205"] != 48_000 {
				t.Errorf("%v, more %v; want 2,000 duplicates and 48,000 lock waits, and no more", all, more)
			}
			r.GroupFew()
			if all, more := counts(); !more || all["1205"] == 0 || all["1205"] >= 48_000 {
				t.Errorf("in no time: %v, more %v; want fewer, and to learn that", all, more)
			}
		})
	}
}

func TestLikeErrorsAreOneLineWithTheirNumber(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		var timeouts []*entry.Unit
		for i := range 7 {
			r.park(t, r.write(t, "users", "INSERT"), fmt.Sprintf("Error 1062 (23000): Duplicate entry 'v%d' for key 'users.email'", i))
			timeouts = append(timeouts, r.wait(t, r.write(t, "orders_3", "UPDATE"), fmt.Sprintf("read tcp 10.0.0.1:%d->10.0.0.2:3306: i/o timeout", 40_000+i)))
			r.wait(t, r.write(t, "orders_4", "UPDATE"), fmt.Sprintf("read tcp 10.0.0.1:%d->10.0.0.2:3306: i/o timeout", 40_000+i))
		}
		for range 3 {
			r.wait(t, r.write(t, "orders_3", "UPDATE"), "ERROR: deadlock detected (SQLSTATE 40P01)")
		}
		r.wait(t, r.write(t, "orders_3", "UPDATE"), "")
		r.write(t, "orders_3", "UPDATE")
		kinds, err := r.Kinds(t.Context(), ops.Filter{})
		must(t, err)
		var got []string
		var timeout ops.Kind
		for _, k := range kinds.Kinds {
			got = append(got, fmt.Sprintf("%d × %s on %s [%s]", k.Count, k.Text, k.DataSource, k.Code))
			if k.DataSource == "orders_3" && k.Code == "" {
				timeout = k
			}
		}
		slices.Sort(got)
		want := []string{
			"3 × ERROR: deadlock detected (SQLSTATE 40P01) on orders_3 [40P01]",
			"7 × Error 1062 (23000): Duplicate entry '?' for key 'users.email' on users [1062]",
			"7 × read tcp 10.0.0.1:?->10.0.0.2:3306: i/o timeout on orders_3 []",
			"7 × read tcp 10.0.0.1:?->10.0.0.2:3306: i/o timeout on orders_4 []",
		}
		if !slices.Equal(got, want) || kinds.More {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if timeout.Oldest != timeouts[0].ID {
			t.Errorf("the oldest is %s, want %s", timeout.Oldest, timeouts[0].ID)
		}
		// A kind is a filter.
		f := ops.Filter{Kind: timeout.Key}
		if got := r.list(t, f, 3); !slices.Equal(got, idsOf(timeouts...)) {
			t.Errorf("of the kind are %v, want %v", got, idsOf(timeouts...))
		}
		sel, err := r.Select(t.Context(), f)
		must(t, err)
		_, err = r.ActAll(t.Context(), ops.Park, sel, ann)
		must(t, err)
		if n, err := r.Count(t.Context(), ops.Filter{State: ops.Parked, DataSource: "orders_3"}, 0); n.N != 7 || err != nil {
			t.Errorf("%+v are parked, %v", n, err)
		}
	})
}
