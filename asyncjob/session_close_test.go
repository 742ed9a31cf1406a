package asyncjob

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

type noConnector struct{ driver.Connector }

var errNoConnection = errors.New("there is none")

func (noConnector) Connect(context.Context) (driver.Conn, error) { return nil, errNoConnection }

// When the job is closed, a running delivery keeps its pool, and later ones get none.
func TestSessionInUseIsClosedAfterItsLastDelivery(t *testing.T) {
	t.Parallel()
	in := target.New(delivery.Target{Connector: noConnector{}, Dialect: new(dialect.Dialect)}, attempt.Receipts{}, nil, 0)
	used := &session{Source: in, pool: in.Greeted(1), users: 1}
	o := sessions{list: []*session{used}}
	o.close()
	if err := used.pool.DB().PingContext(t.Context()); !errors.Is(err, errNoConnection) {
		t.Fatalf("its pool is closed under the delivery: %v", err)
	}
	o.leave(used)
	if err := used.pool.DB().PingContext(t.Context()); err == nil || errors.Is(err, errNoConnection) {
		t.Errorf("its pool is left open: %v", err)
	}
}

type closingConnector struct {
	*fakeDB
	closed int
}

func (c *closingConnector) Close() error { c.closed++; return nil }

// Entries of other sessions are delivered through the data source's own connector, and the last of
// these sessions may not take it along.
func TestEvictedSessionLeavesTheDataSourcesConnectorOpen(t *testing.T) {
	t.Parallel()
	db := &fakeDB{}
	c := &closingConnector{fakeDB: db}
	to := db.target()
	to.Connector = c
	j := newJob(t, newStore(t), Targets{"orders": to}, brittle())
	for i := range 2 * maxSessions {
		if err := j.sources["orders"].accepts(&entry.Unit{Session: fmt.Sprint("search_path=", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if c.closed != 0 {
		t.Errorf("it was closed %d times in use", c.closed)
	}
	if err := j.Close(); err != nil || c.closed != 1 {
		t.Errorf("the end of the job closes it %d times, %v", c.closed, err)
	}
}
