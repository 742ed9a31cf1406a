package txlog

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
)

type silent struct{ driver.Connector }

var errSilent = errors.New("it has no deadline")

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= dberr.ConnectTimeout {
		return nil, context.DeadlineExceeded
	}
	return nil, errSilent
}

// database/sql opens connections for waiting callers without a context of theirs.
func TestConnectionOpenedForAWaiterIsBounded(t *testing.T) {
	t.Parallel()
	db := openDatabase(logdb.Backend{Flavor: sqltext.Postgres}, silent{}, 1)
	defer db.Close()
	if err := db.PingContext(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Connect: %v", err)
	}
}

// A refused log-in is not about one write of several that share a statement.
func TestRefusedLoginRefusesNoWrite(t *testing.T) {
	t.Parallel()
	b := &backend{logdb.Backend{Answered: func(error) bool { return true }}}
	denied := errors.New("access denied")
	if err := (&dialError{denied}); b.refused(err) || b.passing(err) || !b.definite(err) || !b.refused(denied) {
		t.Errorf("refused %v, passing %v, definite %v; the same of a statement: refused %v", b.refused(err), b.passing(err), b.definite(err), b.refused(denied))
	}
}
