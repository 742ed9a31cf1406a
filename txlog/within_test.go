package txlog_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/txlog"

	_ "github.com/bedsql/bed/bedsql/sqlite"
)

var (
	errHeld     = errors.New("lock wait timeout")
	errDoomed   = errors.New("deadlock, the transaction was rolled back")
	errNotAsked = errors.New("not expected")
)

// doomedTx is a transaction whose server rolls it back unasked and reports that once, in the
// answer to the statement that begins with at.
type doomedTx struct{ at string }

func (d doomedTx) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	switch {
	case strings.HasPrefix(query, d.at):
		return nil, errDoomed
	case strings.HasPrefix(query, "INSERT"):
		return nil, errHeld
	}
	return nil, nil
}

func (doomedTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errNotAsked
}

// The application may go on after an entry that was undone, but not in a transaction that is gone.
func TestAnEntrysErrorSaysThatTheTransactionIsGone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(t.TempDir(), "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for _, at := range []string{"ROLLBACK TO", "RELEASE"} {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "shop", Statements: []entry.Statement{{SQL: "DELETE FROM t"}},
			Order: []entry.Order{{Key: entry.OrderPrefix + "k"}}}
		u.TransactionID = u.ID
		_, err := logdb.Of(log).AddWithin(ctx, doomedTx{at}, u, 0, false)
		if !errors.Is(err, errHeld) || !errors.Is(err, errDoomed) || !strings.Contains(err.Error(), "; roll back, ") {
			t.Errorf("after a %s that failed: %v", at, err)
		}
	}
}
