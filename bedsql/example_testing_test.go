package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// failing is a connector with a switch: while it is off, dialling fails.
type failing struct {
	driver.Connector
	down atomic.Bool
}

func (f *failing) Connect(ctx context.Context) (driver.Conn, error) {
	if f.down.Load() {
		return nil, errors.New("dial: connection refused")
	}
	return f.Connector.Connect(ctx)
}

// How a test of your own code sees a pending write, and its delivery, without a
// server and without waiting.
func Example_testing() {
	dir, remove := directory()
	defer remove()
	ctx := context.Background()
	target, err := sqlite.Target("file:" + dir + "/orders.db?bedDataSource=orders")
	check(err)
	orders := &failing{Connector: target.Connector}
	target.Connector = orders

	storage := txlog.NewMemory()
	connector, err := bedsql.NewConnector(target, bedsql.Config{Storage: storage, NoSyncRetry: true})
	check(err)
	db := sql.OpenDB(connector) // what the code under test gets
	defer db.Close()

	orders.down.Store(true)
	_, err = db.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, "o-1", "paid")
	fmt.Println(bedsql.OutcomeOf(err), errors.Is(err, bedsql.ErrPending))

	orders.down.Store(false)
	job, err := asyncjob.New(storage, asyncjob.Targets{"orders": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	check(err)
	defer job.Close()
	report, err := job.RunOnce(ctx)
	check(err)
	waiting, err := storage.List(ctx, txlog.Filter{})
	check(err)
	fmt.Println("delivered", report.Delivered, "still in the log", len(waiting))
	// Output:
	// accepted true
	// delivered 1 still in the log 0
}
