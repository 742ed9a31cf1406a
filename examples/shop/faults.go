package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/txlog"
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

const (
	apples3 = `{"article":"apple","n":3}`
	apples6 = `{"article":"apple","n":6}` // more than the card pays
	pears3  = `{"article":"pear","n":3}`  // more than there are
)

var faults = []fault{
	{"none", "an order is placed, changed, shipped and billed", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		s.send("PATCH", "/orders/a", "b", `{"version":1,"note":"at the door"}`)
		s.send("POST", "/orders/a/ship", "c", `{"version":2}`)
		s.send("GET", "/orders/a", "", "")
		return s.billed(1)
	}},
	{"resent", "a client that got no answer sends its order again; then it uses the key for another one", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		s.send("POST", "/orders", "a", apples3)
		s.send("POST", "/orders", "a", apples6)
		return nil
	}},
	{"declined", "the card pays 500 cents, the order costs 600: the apples are released, and nothing is refunded", func(s *stage) error {
		s.send("POST", "/orders", "a", apples6)
		s.send("GET", "/orders/a", "", "")
		return nil
	}},
	{"out-of-stock", "there are two pears, the order is for three", func(s *stage) error {
		s.send("POST", "/orders", "a", pears3)
		s.send("GET", "/orders/a", "", "")
		return nil
	}},
	{"out-of-stock-later", "the stock service cannot be reached; when it is, it has too few pears, and the charge is refunded", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		return s.broken("stock", cut, func() error {
			s.send("POST", "/orders", "b", pears3)
			return nil
		})
	}},
	{"killed-before-commit", "the payments service is killed after it has written the charge", func(s *stage) error {
		return s.killed(beforeCommit)
	}},
	{"killed-after-commit", "the payments service is killed when it has committed the charge, before it answers", func(s *stage) error {
		return s.killed(afterCommit)
	}},
	{"answer-lost", "the connection to the payments service breaks under each answer", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		return s.broken("payments", answersLost, func() error {
			s.send("POST", "/orders", "b", apples3)
			return nil
		})
	}},
	{"network-cut", "nothing reaches the payments service for a while", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		return s.broken("payments", cut, func() error {
			s.send("POST", "/orders", "b", apples3)
			return s.tries()
		})
	}},
	{"token-expired", "the other services no longer take the token of the orders service", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		s.credentials.renew("expired")
		s.send("POST", "/orders", "b", apples3)
		err := errors.Join(s.tries(), s.tell())
		s.credentials.renew(s.settings.Token)
		fmt.Fprintln(s.out, "  the token is renewed")
		return errors.Join(err, s.deliver())
	}},
	{"stale", "two people change the same version of an order", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		s.send("PATCH", "/orders/a", "b", `{"version":1,"note":"at the door"}`)
		s.send("PATCH", "/orders/a", "c", `{"version":1,"note":"at the gate"}`)
		return nil
	}},
	{"shipped-twice", "an order that is shipped cannot be shipped", func(s *stage) error {
		s.send("POST", "/orders", "a", apples3)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		s.send("POST", "/orders/a/ship", "c", `{"version":2}`)
		return s.billed(1)
	}},
	{"broker-down", "the event cannot be published", func(s *stage) error {
		s.broker.down.Store(true)
		s.send("POST", "/orders", "a", apples3)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		err := s.tell()
		s.broker.down.Store(false)
		return errors.Join(err, s.deliver(), s.billed(1))
	}},
	{"consumer-fails", "the consumer fails when it has written its rows, and gets the event again", func(s *stage) error {
		s.failing.Store(true)
		s.send("POST", "/orders", "a", apples3)
		s.send("POST", "/orders/a/ship", "b", `{"version":1}`)
		return s.billed(1)
	}},
	{"event-twice", "the event is delivered twice", func(s *stage) error {
		s.broker.twice.Store(true)
		s.send("POST", "/orders", "a", apples3)
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
	url     string
	names   []string // pairs of an order's id and its name, the key of the request
	failing atomic.Bool
}

// show causes the fault in a newly opened shop, and reports the events. In the end the books of the
// three databases must agree.
func (f fault) show(ctx context.Context, settings settings, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x, err := openShop(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	s := &stage{shop: x, ctx: ctx, out: out}
	s.job, err = asyncjob.New(x.storage, x.targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, UnknownDataSourceDelay: time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer s.job.Close()
	if s.url, err = x.start(ctx, "127.0.0.1:0", s.bill); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n", f.name, f.what)
	if err := errors.Join(f.run(s), s.tell()); err != nil {
		return err
	}
	fmt.Fprintln(out)
	b, err := look(s.ctx, s.shop)
	return errors.Join(err, b.disagree())
}

// bill fails once if it is told to.
func (s *stage) bill(ctx context.Context, tx *sql.Tx, event *message.Message) error {
	err := s.shop.bill(ctx, tx, event)
	if s.failing.CompareAndSwap(true, false) {
		err = errors.New("the consumer fails")
	}
	return err
}

// send sends a request, and writes it down with its response. The order's id is written as its key.
func (s *stage) send(method, path, key, body string) {
	to := path
	for i := 0; i < len(s.names); i += 2 {
		to = strings.Replace(to, "/orders/"+s.names[i+1], "/orders/"+s.names[i], 1)
	}
	response, answer, err := post(s.ctx, method, s.url+to, key, body)
	if err != nil {
		fmt.Fprintln(s.out, "  no answer:", err)
		return
	}
	if at, ok := strings.CutPrefix(response.Header.Get("Location"), "/orders/"); ok {
		s.names = append(s.names, at, key)
	}
	var problem struct{ Title string }
	if json.Unmarshal(answer, &problem) == nil && problem.Title != "" {
		answer = []byte(problem.Title)
	}
	text := s.named(strings.TrimSpace(string(answer)))
	if response.Header.Get("Idempotent-Replayed") == "true" {
		text = "(replayed) " + text
	}
	fmt.Fprintf(s.out, "  %s: %d %s\n", strings.TrimSpace(fmt.Sprint(method, " ", path, " ", key, " ", body)), response.StatusCode, text)
}

func (s *stage) named(text string) string { return strings.NewReplacer(s.names...).Replace(text) }

// broken runs f while the network to a service is broken, and then the job.
func (s *stage) broken(name string, f fate, run func() error) error {
	s.network.becomes(name, f)
	err := run()
	s.network.becomes(name, well)
	err = errors.Join(err, s.tell())
	fmt.Fprintln(s.out, "  the network works again")
	return errors.Join(err, s.deliver())
}

// killed kills the payments service while it handles a charge, and starts it again.
func (s *stage) killed(when string) error {
	p := s.others["payments"]
	if err := errors.Join(p.kill(), p.start(s.ctx, when)); err != nil {
		return err
	}
	s.send("POST", "/orders", "a", apples3)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		return errors.New("the payments service was not killed")
	}
	if err := p.start(s.ctx, ""); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "  the payments service is dead, and started again")
	return errors.Join(s.tell(), s.deliver())
}

// tries runs the job while it cannot deliver. Such a round counts no try, so that no entry is parked,
// however long the fault lasts.
func (s *stage) tries() error {
	for range 20 {
		if _, err := s.job.RunOnce(s.ctx); err != nil {
			return err
		}
		pause(s.ctx, 2*time.Millisecond)
	}
	left, err := pending(s.ctx, s.storage)
	tries, parked := 0, 0
	for _, u := range left {
		tries += u.Tries
		if u.Parked {
			parked++
		}
	}
	fmt.Fprintf(s.out, "  the job runs 20 times: %d tries counted, %d entries parked\n", tries, parked)
	return err
}

// deliver runs the job until nothing is left to deliver, and the books agree.
func (s *stage) deliver() error {
	fmt.Fprintln(s.out, "  the job runs")
	for late := time.Now().Add(time.Minute); ; pause(s.ctx, 10*time.Millisecond) {
		_, err := s.job.RunOnce(s.ctx)
		left, lerr := pending(s.ctx, s.storage)
		b, berr := look(s.ctx, s.shop)
		if err := errors.Join(err, lerr, berr); err != nil {
			return err
		}
		switch err := b.disagree(); {
		case len(left) == 0 && err == nil:
			return nil
		case time.Now().After(late):
			return fmt.Errorf("the log holds %d entries, %w", len(left), err)
		}
	}
}

// pending returns the entries but the compensation of a delivered group, which the job removes a
// minute later.
func pending(ctx context.Context, storage txlog.Storage) ([]*txlog.Unit, error) {
	left, err := storage.List(ctx, txlog.Filter{})
	return slices.DeleteFunc(left, func(u *txlog.Unit) bool { return u.Undo != nil }), err
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
	b, err := look(s.ctx, s.shop)
	if err != nil {
		return err
	}
	status, paid, refunded := map[string]string{}, int64(0), int64(0)
	for _, o := range b.Orders {
		status[s.named(o.ID)] = o.Status
	}
	for _, c := range b.Charges {
		if c.Refunded {
			refunded += c.Cents
		} else {
			paid += c.Cents
		}
	}
	agree := "the books agree"
	if b.disagree() != nil {
		agree = "the books do not agree yet"
	}
	fmt.Fprintf(s.out, "  = orders %v, stock %v, %d cents paid, %d refunded, %d bills: %s\n",
		list(status), list(b.stock()), paid, refunded, len(b.Bills), agree)
	return nil
}

// list writes a map down in the order of its keys.
func list(m any) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(m), "map["), "]")
}

// books are the contents of the databases, each service has its part.
type books struct {
	Orders       []order       `json:"-"`
	Bills        []bill        `json:"-"`
	Articles     []article     `json:"articles,omitempty"`
	Reservations []reservation `json:"reservations,omitempty"`
	Charges      []charge      `json:"charges,omitempty"`
}

// look reads the books. The faults of the network do not concern it.
func look(ctx context.Context, x *shop) (b books, err error) {
	for _, name := range []string{"stock", "payments"} {
		p := x.others[name]
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/books", nil)
		if err != nil {
			return b, err
		}
		r.Header.Set("Authorization", "Bearer "+x.settings.Token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return b, err
		}
		err = json.NewDecoder(response.Body).Decode(&b)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return b, fmt.Errorf("the books of %s: %s, %w", name, response.Status, err)
		}
	}
	db := x.rows.WithContext(ctx)
	return b, errors.Join(db.Find(&b.Orders).Error, db.Find(&b.Bills).Error)
}

func (b books) stock() map[string]int64 {
	left := map[string]int64{}
	for _, a := range b.Articles {
		if a.Name != "plum" {
			left[a.Name] = a.N
		}
	}
	return left
}

// disagree compares the databases order by order. A cancelled order has no reservation and no charge,
// and any other has both. A shipped order has a bill.
func (b books) disagree() error {
	reserved, paid, billed, left := map[string]reservation{}, map[string]int64{}, map[string]bool{}, map[string]int64{}
	for _, r := range b.Reservations {
		if !r.Released {
			reserved[r.OrderID] = r
			left[r.Article] += r.N
		}
	}
	for _, c := range b.Charges {
		if !c.Refunded {
			paid[c.OrderID] = c.Cents
		}
	}
	for _, one := range b.Bills {
		billed[one.OrderID] = true
	}
	var errs []error
	taken := 0
	for _, o := range b.Orders {
		want := order{ID: o.ID}
		if o.Status != cancelled {
			want.Article, want.N = o.Article, o.N
			taken++
		}
		r := reserved[o.ID]
		if r.Article != want.Article || r.N != want.N || paid[o.ID] != cents*want.N || billed[o.ID] != (o.Status == shipped) {
			errs = append(errs, fmt.Errorf("the order %+v has the reservation %+v, %d cents are paid, billed %v", o, r, paid[o.ID], billed[o.ID]))
		}
	}
	if len(reserved) != taken || len(paid) != taken {
		errs = append(errs, fmt.Errorf("%d orders have %d reservations and %d charges", taken, len(reserved), len(paid)))
	}
	for i, a := range b.Articles {
		if a.N+left[a.Name] != stocked[i].N {
			errs = append(errs, fmt.Errorf("of the article %+v %d are reserved", a, left[a.Name]))
		}
	}
	return errors.Join(errs...)
}
