package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A transfer is made whole or not at all, whatever goes wrong in it.
func TestNoCentIsLostOrMade(t *testing.T) {
	t.Parallel()
	log := testdb.MySQL(t)
	b, err := open(t.Context(), log.DSN, testdb.MySQL(t).DSN, testdb.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var got strings.Builder
	if err := b.show(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	const want = `with: delivered; after the job north 90, south 110
with, ended before End: unknown; after the job north 80, south 120
with, rolled back: not accepted; after the job north 80, south 120
with, more than there is: refused; after the job north 80, south 120
compensated: delivered; after the job north 70, south 130
compensated, the giver's account in use: accepted; after the job north 60, south 140
compensated, the receiver's account in use: accepted; after the job north 50, south 150
compensated, more than there is, in use: accepted; after the job north 50, south 150
compensated, no such account: compensated; after the job north 50, south 150
compensated, more than there is: compensated; after the job north 50, south 150
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
	for what, err := range map[string]error{"with": b.with(t.Context(), 1000, none), "compensated": b.compensated(t.Context(), 1000, none)} {
		var rows *bedsql.RowsError
		if !errors.As(err, &rows) || rows.Want != 1 || rows.Got != 0 {
			t.Errorf("%s of more than there is says %v", what, err)
		}
	}
	b.close()    // when what was delivered is removed
	var left int // but for ways back without a receipt: the job erases them a minute later
	if err := log.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM transaction_log WHERE receipt > ''").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d entries are left, %v", left, err)
	}
}
