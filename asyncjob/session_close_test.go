package asyncjob

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
)

type noConnector struct{ driver.Connector }

var errNoConnection = errors.New("there is none")

func (noConnector) Connect(context.Context) (driver.Conn, error) { return nil, errNoConnection }

// When the job is closed, a running delivery keeps its pool, and later ones get none.
func TestSessionInUseIsClosedAfterItsLastDelivery(t *testing.T) {
	t.Parallel()
	used := &session{pool: sql.OpenDB(noConnector{}), users: 1}
	o := sessions{list: []*session{used}}
	o.close()
	if err := used.pool.PingContext(t.Context()); !errors.Is(err, errNoConnection) {
		t.Fatalf("its pool is closed under the delivery: %v", err)
	}
	o.leave(used)
	if err := used.pool.PingContext(t.Context()); err == nil || errors.Is(err, errNoConnection) {
		t.Errorf("its pool is left open: %v", err)
	}
}
