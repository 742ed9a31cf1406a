package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// place is a database.
type place struct{ Driver, DSN string }

// settings of a shop.
type settings struct {
	Log, Orders, Ledger place
	// Every is how often an order is taken, FaultEvery how often a fault is made, which
	// lasts a tenth of it.
	Every, FaultEvery time.Duration
	Bus               *listener.Bus
	Logger            *logrus.Logger
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

var registers = map[string]func(string, bedsql.Config) error{"mysql": mysql.Register, "postgres": postgres.Register, "sqlite": sqlite.Register}

func open(ctx context.Context, s settings) (_ *shop, err error) {
	x := &shop{settings: s}
	defer func() {
		if err != nil {
			x.close()
		}
	}()
	if x.storage, err = txlog.Open(ctx, s.Log.Driver, s.Log.DSN); err != nil {
		return nil, err
	}
	cfg := bedsql.Config{Storage: x.storage, Bus: s.Bus, RetryTimeout: time.Second}
	if s.Logger != nil {
		cfg.Logger = s.Logger
	}
	if x.orders, err = wrapped(s.Orders, "orders", cfg); err != nil {
		return nil, err
	}
	if x.ledger, err = wrapped(s.Ledger, "ledger", cfg); err != nil {
		return nil, err
	}
	if x.bare, err = sql.Open(map[string]string{"postgres": "pgx"}[s.Ledger.Driver]+strings.TrimPrefix(s.Ledger.Driver, "postgres"), s.Ledger.DSN); err != nil {
		return nil, err
	}
	if _, err = x.orders.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(40) PRIMARY KEY, cents BIGINT NOT NULL)"); err == nil {
		_, err = x.ledger.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS entries (id VARCHAR(40) PRIMARY KEY, cents BIGINT NOT NULL)")
	}
	return x, err
}

// wrapped opens a database through bed, under a name for the log.
func wrapped(p place, name string, cfg bedsql.Config) (*sql.DB, error) {
	driver := "bed-" + name + "-" + uuid.NewString()
	if err := registers[p.Driver](driver, cfg); err != nil {
		return nil, err
	}
	sep := "?"
	if strings.Contains(p.DSN, "?") {
		sep = "&"
	}
	db, err := sql.Open(driver, p.DSN+sep+"bedDataSource="+url.QueryEscape(name))
	if err == nil {
		db.SetMaxOpenConns(8)
	}
	return db, err
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
func (x *shop) run(ctx context.Context) error {
	order, fault := time.NewTicker(x.Every), time.NewTicker(x.FaultEvery)
	defer order.Stop()
	defer fault.Stop()
	broken := make(chan struct{}, 1)
	faults := []func(context.Context, time.Duration) error{x.lock, x.rename}
	for n := 0; ; {
		select {
		case <-ctx.Done():
			broken <- struct{}{} // a fault that is being made is undone first
			return nil
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

// order writes one order. The answer is counted; an application would pass it on to its customer.
func (x *shop) order(ctx context.Context) {
	id, cents := uuid.NewString(), 100+time.Now().UnixNano()%9900
	x.counts.taken.Add(1)
	tctx, t, err := bedsql.Begin(context.WithoutCancel(ctx))
	if err == nil {
		_, err = x.orders.ExecContext(tctx, insert(x.Orders.Driver, "orders"), id, cents)
		if err == nil {
			_, err = x.ledger.ExecContext(tctx, insert(x.Ledger.Driver, "entries"), id, cents)
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

// insert may be run twice: the second time it finds its row.
func insert(driver, table string) string {
	switch driver {
	case "mysql":
		return "INSERT IGNORE INTO " + table + " (id, cents) VALUES (?, ?)"
	case "postgres":
		return "INSERT INTO " + table + " (id, cents) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING"
	default:
		return "INSERT INTO " + table + " (id, cents) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"
	}
}
