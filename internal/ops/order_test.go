package ops_test

import (
	"slices"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestNewestFirstIsOldestFirstReversed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		for i := range 23 {
			texts := []string{"UPDATE a SET n = 1", "UPDATE b SET n = 2", "UPDATE a SET n = 3"}[:1+i%3]
			u := r.write(t, []string{"orders", "ledger"}[i%2], texts...)
			if i%4 != 0 {
				must(t, r.log.Release(t.Context(), u, entry.Verdict{Park: i%2 == 0, Err: "Error 1213 (40001): Deadlock found", CountTry: true}))
			}
		}
		read := func(f ops.Filter, limit int, newest bool) (ids []string) {
			p := ops.Page{Limit: limit, Newest: newest}
			for {
				page, err := r.Entries(t.Context(), f, p)
				must(t, err)
				for _, e := range page.Entries {
					ids = append(ids, e.ID)
				}
				if p.After = page.Next; p.After == "" {
					return ids
				}
			}
		}
		kinds, err := r.Kinds(t.Context(), ops.Filter{})
		must(t, err)
		for _, f := range []ops.Filter{{}, {DataSource: "ledger"}, {State: ops.Parked}, {Text: "UPDATE"}, {Text: "SET n = 3"}, {Text: "Deadlock", State: ops.Waiting}, {Kind: kinds.Kinds[0].Key}} {
			want := read(f, 1000, false)
			slices.Reverse(want)
			for _, limit := range []int{1, 4, 1000} {
				if got := read(f, limit, true); !slices.Equal(got, want) || len(want) == 0 {
					t.Errorf("%+v by %d: %d entries\n%q\nwant\n%q", f, limit, len(got), got, want)
				}
			}
		}
	})
}

func TestProgressTellsWhatBecameOfEntries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		ids := []string{entry.NewID()} // delivered since
		for i := range 5 {
			u := r.write(t, "orders", "UPDATE a SET n = 1", "UPDATE b SET n = 1")
			must(t, r.log.Release(t.Context(), u, entry.Verdict{Park: i < 2, Err: "no", CountTry: true}))
			ids = append(ids, u.ID)
		}
		p, err := r.Progress(t.Context(), ids)
		must(t, err)
		if want := (ops.Progress{Gone: 1, Parked: 2, Waiting: 3}); p != want {
			t.Errorf("got %+v, want %+v", p, want)
		}
	})
}
