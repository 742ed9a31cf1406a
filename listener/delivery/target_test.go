package delivery_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
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
	target := delivery.Target{Connector: silent{}, Dialect: &dialect.Dialect{}}
	if _, err := target.Greeted().Connect(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Connect: %v", err)
	}
}
