package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
)

func TestRunFreesWhatWaitsBehindADeletedEntry(t *testing.T) {
	h, st := newDesk(t)
	var ids []string
	for range 2 {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "INSERT INTO a DEFAULT VALUES"}}, Order: []entry.Order{{Key: entry.OrderPrefix + "k"}}}
		u.Receipt = u.ID
		if err := st.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		if err := st.Release(t.Context(), u, entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, u.ID)
	}
	if _, err := logdb.Journal(st).DB().ExecContext(t.Context(), "DELETE FROM transaction_log WHERE id = ?", ids[0]); err != nil {
		t.Fatal(err)
	}
	if r := h.run(t, "list"); !strings.Contains(r.out, "waiting for") {
		t.Fatalf("it does not wait: %s", r.out)
	}
	if r := h.run(t, "run", "--once"); r.status != 0 {
		t.Fatalf("got %+v", r)
	}
	if r := h.run(t, "list"); !strings.Contains(r.out, ids[1]) || strings.Contains(r.out, "waiting for") {
		t.Errorf("it still waits: %s", r.out)
	}
}
