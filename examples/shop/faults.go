package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/asyncjob"
)

// fault is something that goes wrong, with the shop's reaction.
type fault struct {
	name, what string
	run        func(*stage) error
}

func faultNames() string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

var faults = []fault{
	{"none", "an order is placed, changed, shipped and billed", func(s *stage) error {
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("PATCH", "/orders/a", "b", `{"version":1,"note":"at the door"}`)
		s.send("POST", "/orders/a/ship", "c", `{"version":2}`)
		s.send("GET", "/orders/a", "", "")
		return s.billed(1)
	}},
	{"resent", "a client that got no answer sends its order again; then it uses the key for another one", func(s *stage) error {
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders", "a", `{"article":"apple","n":4}`)
		return nil
	}},
	{"out-of-stock", "there are ten apples, the order is for eleven", func(s *stage) error {
		s.send("POST", "/orders", "a", `{"article":"apple","n":11}`)
		s.send("GET", "/orders/a", "", "")
		return nil
	}},
	{"ledger-locked", "somebody keeps the ledger locked for longer than a request waits", func(s *stage) error {
		return s.locked("ledger", func() {
			s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
			s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		})
	}},
	{"out-of-stock-later", "the stock is locked, and when it can be asked there is too little", func(s *stage) error {
		return s.locked("stock", func() { s.send("POST", "/orders", "a", `{"article":"apple","n":11}`) })
	}},
	{"stale", "two people change the same version of an order", func(s *stage) error {
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("PATCH", "/orders/a", "b", `{"version":1,"note":"at the door"}`)
		s.send("PATCH", "/orders/a", "c", `{"version":1,"note":"at the gate"}`)
		return nil
	}},
	{"shipped-twice", "an order that is shipped cannot be shipped", func(s *stage) error {
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		s.send("POST", "/orders/a/ship", "c", `{"version":2}`)
		return s.billed(1)
	}},
	{"broker-down", "the event cannot be published", func(s *stage) error {
		s.broker.down.Store(true)
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		err := s.tell()
		s.broker.down.Store(false)
		return errors.Join(err, s.round(), s.billed(1))
	}},
	{"consumer-fails", "the consumer fails when it has written its rows, and gets the event again", func(s *stage) error {
		s.failing.Store(true)
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		return s.billed(1)
	}},
	{"event-twice", "the event is delivered twice", func(s *stage) error {
		s.broker.twice.Store(true)
		s.send("POST", "/orders", "a", `{"article":"apple","n":3}`)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		return s.billed(2)
	}},
}

// stage is the scene of a fault: a shop with its API, its consumer and a job.
type stage struct {
	*shop
	ctx     context.Context
	out     io.Writer
	job     *asyncjob.Job
	url, id string
	failing atomic.Bool
}

// show causes the fault in a newly opened shop, and reports the events.
func (f fault) show(ctx context.Context, settings settings, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x, err := open(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	s := &stage{shop: x, ctx: ctx, out: out}
	s.job, err = asyncjob.New(x.storage, x.targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay})
	if err != nil {
		return err
	}
	defer s.job.Close()
	if s.url, err = x.start(ctx, "127.0.0.1:0", s.bill); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n", f.name, f.what)
	err = errors.Join(f.run(s), s.tell())
	fmt.Fprintln(out)
	return err
}

// bill fails once if it is told to.
func (s *stage) bill(ctx context.Context, tx *sql.Tx, event *message.Message) error {
	err := s.shop.bill(ctx, tx, event)
	if s.failing.CompareAndSwap(true, false) {
		err = errors.New("the consumer fails")
	}
	return err
}

// send sends a request, and writes it down with its response. The order's id is written as
// its key.
func (s *stage) send(method, path, key, body string) {
	response, answer, err := send(s.ctx, method, s.url+strings.Replace(path, "/orders/a", "/orders/"+s.id, 1), key, body)
	if err != nil {
		fmt.Fprintln(s.out, "  no answer:", err)
		return
	}
	if at := response.Header.Get("Location"); at != "" {
		s.id = strings.TrimPrefix(at, "/orders/")
	}
	var problem struct{ Title string }
	if json.Unmarshal(answer, &problem) == nil && problem.Title != "" {
		answer = []byte(problem.Title)
	}
	text := strings.ReplaceAll(strings.TrimSpace(string(answer)), s.id, "a")
	if response.Header.Get("Idempotent-Replayed") == "true" {
		text = "(replayed) " + text
	}
	fmt.Fprintf(s.out, "  %s: %d %s\n", strings.TrimSpace(fmt.Sprint(method, " ", path, " ", key, " ", body)), response.StatusCode, text)
}

// locked runs f while another client holds a lock on a database, and then runs the job.
func (s *stage) locked(name string, f func()) error {
	unlock, err := lock(s.ctx, s.shop, name)
	if err != nil {
		return err
	}
	f()
	if name == "ledger" && s.atHome {
		err = s.canceled()
	}
	if err := errors.Join(err, unlock()); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "  the lock is released")
	return errors.Join(s.tell(), s.round())
}

// canceled waits until no one waits for a lock of the ledger. PostgreSQL notices a little later
// that a write was cancelled, and would run it after the release of the lock.
func (s *stage) canceled() error {
	late := time.After(time.Minute)
	for {
		var waiting int64
		err := s.ledger.WithContext(s.ctx).Raw("SELECT COUNT(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE NOT granted AND datname = current_database()").Scan(&waiting).Error
		if err != nil || waiting == 0 {
			return err
		}
		select {
		case <-late:
			return fmt.Errorf("%d writes still wait for the ledger", waiting)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// round runs the job until there is nothing left to do.
func (s *stage) round() error {
	fmt.Fprintln(s.out, "  the job runs")
	for {
		if report, err := s.job.RunOnce(s.ctx); err != nil || report.Claimed == 0 {
			return err
		}
	}
}

// billed waits until events have been processed.
func (s *stage) billed(events int64) error {
	late := time.After(time.Minute)
	for s.acknowledged.Load() < events {
		select {
		case <-late:
			return fmt.Errorf("%d events of %d were processed", s.acknowledged.Load(), events)
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// tell writes down the contents of the databases.
func (s *stage) tell() error {
	b, err := look(s.shop)
	states := "no order"
	for _, o := range b.orders {
		states = "order " + o.Status
	}
	fmt.Fprintf(s.out, "  = %s, %d apples, %d cents owed, %d due, %d bills\n", states, b.apples, b.owed, b.due, b.bills)
	return err
}

// books are the contents of the databases.
type books struct {
	orders                   []order
	apples, owed, due, bills int64
}

func look(x *shop) (b books, err error) {
	sum := "COALESCE(SUM(cents), 0)"
	return b, errors.Join(
		x.orders.Find(&b.orders).Error,
		x.stock.Model(&article{}).Select("n").Where("name = ?", "apple").Scan(&b.apples).Error,
		x.ledger.Model(&debt{}).Select(sum).Scan(&b.owed).Error,
		x.ledger.Model(&debt{}).Select(sum).Where("due").Scan(&b.due).Error,
		x.ledger.Model(&bill{}).Count(&b.bills).Error,
	)
}

// lock locks a database as another client would, without bed.
func lock(ctx context.Context, x *shop, name string) (unlock func() error, err error) {
	take := map[string][]string{
		"stock":  {"BEGIN", "SELECT * FROM articles FOR UPDATE"},
		"ledger": {"BEGIN", "LOCK TABLE debts"},
	}[name]
	if !x.atHome {
		take = []string{"BEGIN IMMEDIATE"}
	}
	bare := sql.OpenDB(x.targets[name].Connector)
	conn, err := bare.Conn(ctx)
	for _, statement := range take {
		if err == nil {
			_, err = conn.ExecContext(ctx, statement)
		}
	}
	unlock = func() error { // it is rolled back
		if conn == nil {
			return bare.Close()
		}
		return errors.Join(conn.Close(), bare.Close())
	}
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	return unlock, nil
}

// rename takes a table of the ledger away: writes to it are refused.
func rename(ctx context.Context, x *shop) (back func() error, err error) {
	bare := sql.OpenDB(x.targets["ledger"].Connector)
	ctx = context.WithoutCancel(ctx) // else it may be away, and nobody knows
	if _, err := bare.ExecContext(ctx, "ALTER TABLE debts RENAME TO debts_away"); err != nil {
		return nil, errors.Join(err, bare.Close())
	}
	return func() (err error) {
		for range 100 { // SQLite may be busy
			if _, err = bare.ExecContext(ctx, "ALTER TABLE debts_away RENAME TO debts"); err == nil {
				break
			}
			pause(ctx, 100*time.Millisecond)
		}
		return errors.Join(err, bare.Close())
	}, nil
}
