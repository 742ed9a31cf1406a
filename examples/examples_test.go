// Package examples runs the programs in its directories as their readers do.
package examples

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var entryID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Each start is one command, needs no server, and shows a write that is accepted and
// delivered later.
func TestStartsTellWhatHappened(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"start-sql": `o-1 done
o-2 accepted
o-1 refused: constraint failed: UNIQUE constraint failed: orders.id (1555)
the job delivered 1 and there are 2 orders
`,
		"start-gorm": `o-1 done
o-2 accepted
o-1 refused: bed: orders refused a write, nothing of its group is applied, and its entries are removed: constraint failed: UNIQUE constraint failed: orders.id (1555)
bed: ledger refused a write, nothing of its group is applied, and its entries are removed: constraint failed: UNIQUE constraint failed: debts.order_id (1555)
the job delivered 1 and there are 2 orders and 2 debts
`,
		"start-sqlx": `request-1 done, answered before: false
request-1 done, answered before: true
request-2 refused: bed: the write is refused: required exactly 1 row, changed 0
request-3 accepted
the job delivered 1 and 4 apples are left
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := exec.CommandContext(t.Context(), "go", "run", "./"+name)
			var log strings.Builder
			run.Stderr = &log
			out, err := run.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &log)
			}
			if got := entryID.ReplaceAllString(string(out), "ID"); got != want {
				t.Errorf("got\n%swant\n%s%s", got, want, &log)
			}
		})
	}
}
