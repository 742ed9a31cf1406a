package ops_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestAuditKeepsFiltersAndIDsOfWhatWasErased(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		a := r.park(t, r.write(t, "users", "INSERT INTO users VALUES (?)"), duplicate)
		b := r.park(t, r.write(t, "users", "INSERT INTO users VALUES (?)"), duplicate)
		kinds, err := r.Kinds(t.Context(), ops.Filter{})
		must(t, err)
		key := kinds.Kinds[0].Key
		f := ops.Filter{Text: `Duplicate entry 's3cr3t' for`, Reveal: true, Kind: key}
		sel := r.selected(t, f, 2)
		_, err = r.ActAll(t.Context(), ops.Discard, sel, ann)
		must(t, err)

		type filter struct {
			Text, Kind, Code, DataSource string
			IDs                          []string
		}
		read := func(audit *ops.Audit, err error) (f filter, what string) {
			t.Helper()
			must(t, err)
			for _, rec := range audit.Records {
				if rec.Action == ops.Discard {
					what = rec.What
				}
			}
			must(t, json.Unmarshal([]byte(what), &f))
			return f, what
		}
		whole, _ := read(r.RevealAudit(t.Context(), ops.Page{}, ann))
		if whole.Text != f.Text || whole.Code != "1062" || whole.DataSource != "users" || !slices.Equal(whole.IDs, idsOf(a, b)) {
			t.Errorf("revealed, the audit says %+v", whole)
		}
		masked, text := read(r.Audit(t.Context(), ops.Page{}))
		if strings.Contains(text, "s3cr3t") || masked.Text != "?" || masked.Kind != whole.Kind || !slices.Equal(masked.IDs, whole.IDs) {
			t.Errorf("masked, the audit says %s", text)
		}
	})
}
