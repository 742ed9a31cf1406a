package txlog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// The server answers with error 1153, or hangs up while the packet is still being sent.
func TestEntryLargerThanTheServersLimitIsUnstorable(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	var limit int
	if err := db.Open(t).QueryRow("SELECT @@max_allowed_packet").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*txlog.SQLStorage){
		"known when the log was opened": func(*txlog.SQLStorage) {},
		"told by the server":            (*txlog.SQLStorage).ForgetPacketLimit,
	} {
		s, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		change(s)
		for _, statements := range []int{1, 2} {
			u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: make([]entry.Statement, statements)}
			u.Statements[statements-1].SQL = strings.Repeat("x", limit+1)
			err = s.Add(t.Context(), time.Minute, u)
			if !errors.Is(err, txlog.ErrUnstorable) || errors.Is(err, txlog.ErrInDoubt) || !strings.Contains(fmt.Sprint(err), "max_allowed_packet") {
				t.Errorf("%s, %d statements: %.300v", what, statements, err)
			}
		}
		if units, err := s.List(t.Context(), txlog.Filter{}); err != nil || len(units) > 0 {
			t.Errorf("%s: the log holds %d units, %v", what, len(units), err)
		}
	}
}
