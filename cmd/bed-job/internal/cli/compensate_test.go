package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

func TestCompensateTurnsAGroupBackAndCheckIsCriticalHalfUndone(t *testing.T) {
	h, st := newDesk(t)
	id := entry.NewID()
	f := &entry.Unit{ID: entry.NewID(), TransactionID: id, DataSource: "a", Receipt: "r", Statements: []entry.Statement{{SQL: "DELETE FROM a", Part: 1}}}
	k := &entry.Unit{ID: id, TransactionID: id, DataSource: "a", Statements: []entry.Statement{{SQL: "INSERT INTO a VALUES (1)", Part: 1}},
		Undo: &entry.Undo{Parts: []entry.Part{{Unit: f.ID, Receipt: "r", DataSource: "a"}}}}
	if err := st.Add(t.Context(), time.Hour, f, k); err != nil {
		t.Fatal(err)
	}
	if r := h.run(t, "list"); !strings.Contains(r.out, "leased, recorded") {
		t.Errorf("list: %+v", r)
	}
	if r := h.run(t, "show", f.ID); !strings.Contains(r.out, "part of a compensable group") {
		t.Errorf("show: %+v", r)
	}
	for _, args := range []string{"", "--yes", "--reason x"} {
		if r := h.run(t, append([]string{"compensate", id}, strings.Fields(args)...)...); r.status != 2 {
			t.Errorf("compensate %s: %+v", args, r)
		}
	}
	if r := h.run(t, "compensate", entry.NewID(), "--reason", "x", "--yes"); r.status != 1 || !strings.Contains(r.err, "holds no such id") {
		t.Errorf("what is no group: %+v", r)
	}
	if r := h.run(t, "compensate", id, "--reason", "sold out", "--yes"); r.status != 0 || !strings.Contains(r.out, id+": compensation started; the job compensates its parts, the one on a first") {
		t.Errorf("compensate: %+v", r)
	}
	if r := h.run(t, "compensate", id, "--reason", "sold out", "--yes", "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"parts": 1`) {
		t.Errorf("once more: %+v", r)
	}
	if r := h.run(t, "check", "--parked-warning", "9"); r.status != 0 {
		t.Errorf("check of a group that is being compensated: %+v", r)
	}
	turned, err := st.Compensate(t.Context(), id, time.Hour, "")
	if err == nil {
		err = st.Release(t.Context(), turned, entry.Verdict{Park: true, Err: "no such column"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := h.run(t, "check", "--parked-warning", "9"); r.status != 2 || !strings.HasPrefix(r.out, "CRITICAL: half compensated: 1 (see bed-job list --parked); 1 parked |") {
		t.Errorf("check: %+v", r)
	}
	if r := h.run(t, "list", "--parked"); !strings.Contains(r.out, "half compensated") {
		t.Errorf("list: %+v", r)
	}
	if r := h.run(t, "show", id); !strings.Contains(r.out, "half compensated") || !strings.Contains(r.out, "compensated by an operator: sold out") {
		t.Errorf("show: %+v", r)
	}
	if r := h.run(t, "show", id, "-o", "json"); !strings.Contains(r.out, `"group": "halfCompensated"`) || !strings.Contains(r.out, `"compensates": "a"`) {
		t.Errorf("show: %+v", r)
	}
	if r := h.run(t, "audit"); !strings.Contains(r.out, "compensate") || !strings.Contains(r.out, "sold out") {
		t.Errorf("audit: %+v", r)
	}
}
