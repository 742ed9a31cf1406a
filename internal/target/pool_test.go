package target_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

type silent struct{ driver.Connector }

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	if _, ok := ctx.Deadline(); ok {
		return nil, context.DeadlineExceeded
	}
	return nil, errors.New("it has no deadline")
}

// database/sql opens connections for waiting callers without a context of theirs.
func TestConnectionOpenedForAWaiterIsBounded(t *testing.T) {
	t.Parallel()
	in := target.New(delivery.Target{Connector: silent{}, Dialect: &dialect.Dialect{}}, attempt.Receipts{}, nil, 0)
	if _, err := in.Greeted(1).Connect(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Connect: %v", err)
	}
}
