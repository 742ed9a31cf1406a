package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// settings of a shop.
type settings struct {
	Log, Orders, Ledger string // DSNs
	// Every is how often an order is taken, FaultEvery how often a fault is made, which
	// lasts a tenth of it.
	Every, FaultEvery time.Duration
	Bus               *listener.Bus
}

// counts are what happened to the orders.
type counts struct{ taken, later, refused, lost atomic.Int64 }

func (c *counts) String() string {
	return fmt.Sprintf("%d orders: %d to be delivered later, %d refused and parked, %d not accepted", c.taken.Load(), c.later.Load(), c.refused.Load(), c.lost.Load())
}

// shop writes each order to two databases.
type shop struct {
	settings
	storage        *txlog.SQLStorage
	orders, ledger *sql.DB
	// bare leads to the ledger without bed, to break it.
	bare   *sql.DB
	counts counts
}

func open(ctx context.Context, s settings) (_ *shop, err error) {
	x := &shop{settings: s}
	defer func() {
		if err != nil {
			x.close()
		}
	}()
	if x.storage, err = txlog.Open(ctx, "mysql", s.Log); err != nil {
		return nil, err
	}
	cfg := bedsql.Config{Storage: x.storage, Bus: s.Bus, RetryTimeout: time.Second}
	// The log keeps writes under the names that bed-job's configuration gives the databases.
	orders, err := mysql.Target(s.Orders)
	if err != nil {
		return nil, err
	}
	orders.DataSource = "orders"
	toOrders, err := mysql.NewConnector(orders, cfg)
	if err != nil {
		return nil, err
	}
	ledger, err := postgres.Target(s.Ledger)
	if err != nil {
		return nil, err
	}
	ledger.DataSource = "ledger"
	toLedger, err := postgres.NewConnector(ledger, cfg)
	if err != nil {
		return nil, err
	}
	x.orders, x.ledger, x.bare = sql.OpenDB(toOrders), sql.OpenDB(toLedger), sql.OpenDB(ledger.Connector)
	for _, db := range []*sql.DB{x.orders, x.ledger} {
		db.SetMaxOpenConns(8)
	}
	if _, err = x.orders.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(40) PRIMARY KEY, cents BIGINT NOT NULL)"); err == nil {
		_, err = x.ledger.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS entries (id VARCHAR(40) PRIMARY KEY, cents BIGINT NOT NULL)")
	}
	return x, err
}

func (x *shop) close() {
	for _, db := range []*sql.DB{x.orders, x.ledger, x.bare} {
		if db != nil {
			_ = db.Close()
		}
	}
	if x.storage != nil {
		_ = x.storage.Close()
	}
}

// run takes orders, and makes faults, until ctx is done.
func (x *shop) run(ctx context.Context) {
	order, fault, told := time.NewTicker(x.Every), time.NewTicker(x.FaultEvery), time.NewTicker(10*time.Second)
	defer order.Stop()
	defer fault.Stop()
	defer told.Stop()
	broken := make(chan struct{}, 1)
	faults := []func(context.Context, time.Duration) error{x.lock, x.rename}
	for n := 0; ; {
		select {
		case <-ctx.Done():
			broken <- struct{}{} // a fault that is being made is undone first
			return
		case <-told.C:
			fmt.Println(&x.counts)
		case <-fault.C:
			make := faults[n%len(faults)]
			n++
			broken <- struct{}{}
			go func() {
				defer func() { <-broken }()
				if err := make(ctx, x.FaultEvery/10); err != nil && ctx.Err() == nil {
					logrus.WithError(err).Warn("a fault could not be made")
				}
			}()
		case <-order.C:
			x.order(ctx)
		}
	}
}

// order writes one order. Its statements may be run twice: the second time they find their
// rows. The answer is counted; an application would pass it on to its customer.
func (x *shop) order(ctx context.Context) {
	id, cents := uuid.NewString(), 100+time.Now().UnixNano()%9900
	x.counts.taken.Add(1)
	tctx, t, err := bedsql.Begin(context.WithoutCancel(ctx))
	if err == nil {
		_, err = x.orders.ExecContext(tctx, "INSERT IGNORE INTO orders (id, cents) VALUES (?, ?)", id, cents)
		if err == nil {
			_, err = x.ledger.ExecContext(tctx, "INSERT INTO entries (id, cents) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING", id, cents)
		}
		err = errors.Join(err, t.End(context.WithoutCancel(ctx)))
	}
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered:
	case bedsql.OutcomeAccepted:
		x.counts.later.Add(1)
	case bedsql.OutcomeRefused, bedsql.OutcomePartlyRefused:
		x.counts.refused.Add(1)
	default:
		x.counts.lost.Add(1)
	}
}
