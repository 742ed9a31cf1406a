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
