package ops

import (
	"testing"

	"github.com/bedsql/bed/internal/sqltext"
)

func TestPlaceholdersAreCountedUnlessTheyHaveNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"DELETE FROM t": 0, "UPDATE t SET a = ?, b = '?' /* ? */ WHERE c = ?": 2, `UPDATE t SET ":a" = ?`: 1,
		"UPDATE t SET a = ?1": -1, "UPDATE t SET a = :a, b = ?": -1, "UPDATE t SET a = $1": -1, "UPDATE t SET a = @a": -1,
	} {
		if got := placeholders(sqltext.SQLite, text); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
	if placeholders(sqltext.MySQL, "UPDATE t SET a = ?") != -1 {
		t.Error("MySQL counts by itself")
	}
}
