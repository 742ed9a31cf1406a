package bedhttp_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	bedmysql "github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// A group with a message is refused by two errors: the database's, and the message's own.
func TestAMissingTableIsTheServicesMistakeInAGroupToo(t *testing.T) {
	t.Parallel()
	target, err := bedmysql.Target("root@tcp(127.0.0.1:3306)/ledger")
	if err != nil {
		t.Fatal(err)
	}
	target.Dialect.Know()
	missing := &bedsql.RefusedError{DataSource: "ledger", Cause: &mysql.MySQLError{Number: 1146, SQLState: [5]byte([]byte("42S02"))}}
	unsent := attempt.Certain(errors.New("bed: the message was not sent"), dialect.Unreachable)
	for _, errs := range [][]error{{missing}, {missing, unsent}, {unsent, missing}} {
		w := httptest.NewRecorder()
		bedhttp.Error(w, httptest.NewRequest(http.MethodPost, "/", nil), &bedsql.EndError{Errors: errs})
		if w.Code != http.StatusInternalServerError {
			t.Errorf("%d errors are answered %d", len(errs), w.Code)
		}
	}
}
