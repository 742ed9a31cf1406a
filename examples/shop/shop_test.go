package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Each fault ends as in faults.txt, on SQLite as on servers.
func TestFaultsEndAsTold(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		name, _, _ := strings.Cut(part, ":")
		told[name] = strings.TrimSpace(part)
	}
	if len(told) != len(faults) {
		t.Errorf("faults.txt tells of %d faults, there are %d", len(told), len(faults))
	}
	// The faults mostly wait, so five run at a time, whatever -parallel is.
	each := func(t *testing.T, where func(t *testing.T, fault string) settings) {
		t.Parallel()
		got, errs := make([]strings.Builder, len(faults)), make([]error, len(faults))
		turns := make(chan struct{}, 5)
		var all sync.WaitGroup
		for i, f := range faults {
			s := where(t, f.name)
			s.Patience = 30 * time.Second
			if f.name == "ledger-locked" || f.name == "out-of-stock-later" { // which outlast it
				s.Patience = 5 * time.Second
			}
			all.Go(func() {
				turns <- struct{}{}
				errs[i] = f.show(t.Context(), s, &got[i])
				<-turns
			})
		}
		all.Wait()
		for i, f := range faults {
			if got := strings.TrimSpace(got[i].String()); errs[i] != nil || got != told[f.name] {
				t.Errorf("%v, got\n%s\nwant\n%s", errs[i], got, told[f.name])
			}
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		each(t, func(*testing.T, string) settings { return settings{} })
	})
	t.Run("servers", func(t *testing.T) {
		nats := testdb.PrivateNATS(t).DSN()
		each(t, func(t *testing.T, fault string) settings { return servers(t, nats, fault) })
	})
}

// Whatever breaks the ledger while customers order, each order is in all databases or in none,
// once an operator has retried the parked entries.
func TestNoOrderIsLostToTheFaultsOfTheLedger(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*testing.T) settings{
		"SQLite":  func(t *testing.T) settings { return settings{} },
		"servers": func(t *testing.T) settings { return servers(t, testdb.PrivateNATS(t).DSN(), "load") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := where(t)
			s.Patience = 2 * time.Second
			x, url := serving(t, s)
			c := &customers{shop: x, url: url, every: 20 * time.Millisecond, calm: 300 * time.Millisecond, trouble: 3 * time.Second}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var running sync.WaitGroup
			running.Go(func() { c.run(ctx) })
			wait(t, func() bool {
				return c.faults.Load() >= 3 && c.shipped.Load() > 2 && c.shipped.Load() < c.accepted.Load()
			}, "the load")
			stop()
			running.Wait()
			wait(t, func() bool { // an order may be shipped without its bill until then
				deliver(t, x)
				c.unanswered = slices.DeleteFunc(c.unanswered, func(r request) bool {
					_, answered := c.send(r, &c.shipped)
					return answered
				})
				return len(c.unanswered) == 0
			}, "the requests without an answer")
			settle(t, x)
		})
	}
}

// deliver runs a job and an operator for the remaining entries.
func deliver(t *testing.T, x *shop) {
	job, err := asyncjob.New(x.storage, x.targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay})
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	wait(t, func() bool { // what a caller left waits until its lease is over
		parked, err := x.storage.List(t.Context(), txlog.Filter{Parked: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range parked {
			if err := x.storage.Retry(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		}
		if report, err := job.RunOnce(t.Context()); err != nil {
			t.Fatalf("the job: %v, %v", report, err)
		}
		left, err := x.storage.List(t.Context(), txlog.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	}, "the log")
}

// settle delivers the remaining entries, and checks the books.
func settle(t *testing.T, x *shop) {
	deliver(t, x)
	var b books
	var err error
	wait(t, func() bool {
		if b, err = look(x); err != nil {
			t.Fatal(err)
		}
		return b.bills == b.due/cents
	}, "the bills")
	var taken, gone int64
	for _, o := range b.orders {
		if o.Status != cancelled {
			taken++
		}
		if o.Status == shipped {
			gone++
		}
	}
	var pears int64
	if err := x.stock.Model(&article{}).Select("n").Where("name = ?", "pear").Scan(&pears).Error; err != nil {
		t.Fatal(err)
	}
	if b.owed != cents*taken || b.due != cents*gone || pears != 1_000_000-taken {
		t.Errorf("of %d orders %d are not cancelled and %d shipped; %d cents are owed, %d due, %d pears left, %d bills", len(b.orders), taken, gone, b.owed, b.due, pears, b.bills)
	}
}

func wait(t *testing.T, until func() bool, what any) {
	t.Helper()
	seen := time.NewTicker(10 * time.Millisecond)
	defer seen.Stop()
	for late := time.After(5 * time.Minute); !until(); {
		select {
		case <-seen.C:
		case <-late:
			t.Fatalf("it takes too long: %v", what)
		}
	}
}

// servers puts the log, the orders and the stock into one database.
func servers(t *testing.T, nats, topic string) settings {
	one := testdb.MySQL(t).DSN
	return settings{
		Log: one, Orders: one, Stock: one, Ledger: testdb.Postgres(t).DSN,
		NATS: nats, Topic: topic,
	}
}

// A refused request leaves nothing in any database, although bedhttp commits the rows that go with
// a 4xx.
func TestRefusedOrderLeavesNothing(t *testing.T) {
	t.Parallel()
	x, url := serving(t, servers(t, "", "refused"))
	body := `{"article":"apple","n":3,"note":"` + strings.Repeat("n", 201) + `"}`
	response, _, err := send(t.Context(), http.MethodPost, url+"/orders", "a", body)
	if err != nil || response.StatusCode != http.StatusConflict {
		t.Fatalf("a note that is too long is answered %v, %v", response, err)
	}
	settle(t, x)
	if b, err := look(x); err != nil || len(b.orders) != 0 || b.owed != 0 || b.apples != 10 {
		t.Errorf("%+v, %v", b, err)
	}
}

// A handler needs a connection beside its request's: it does not wait for those of other
// requests.
func TestOrdersOfManyClientsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	_, url := serving(t, servers(t, "", "many"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // less than bedhttp's HandlerTimeout
	defer cancel()
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			response, _, err := send(ctx, http.MethodPost, url+"/orders", fmt.Sprint(n), `{"article":"pear","n":1}`)
			if err != nil || response.StatusCode != http.StatusAccepted {
				t.Errorf("%v, %v", response, err)
			}
		})
	}
	all.Wait()
}

// The two forms of a key lead to the same order.
func TestOrderHasOneIDForBothFormsOfItsKey(t *testing.T) {
	t.Parallel()
	x, _ := serving(t, settings{})
	keys, err := x.keys.DB()
	if err != nil {
		t.Fatal(err)
	}
	once, err := bedhttp.New(bedhttp.Config{Service: "ids", DB: keys, Client: customer, Required: true})
	if err != nil {
		t.Fatal(err)
	}
	ids := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, orderID(r)) }))
	id := func(key string) string {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set("Idempotency-Key", key)
		if ids.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%s is answered %d", key, w.Code)
		}
		return w.Body.String()
	}
	for _, same := range [][]string{{`a`, `"a"`, ` "a";v=1`}, {`a\b`, `"a\\b"`}, {"`a`", "\"`a`\""}} {
		for _, key := range same {
			if id(key) != id(same[0]) {
				t.Errorf("%s and %s are two orders", same[0], key)
			}
		}
	}
	if id("a") == id("`a`") || id("a") == id("b") {
		t.Error("two keys are one order")
	}
}

func TestFaultIsKnownByItsWholeName(t *testing.T) {
	t.Parallel()
	if err := show(t.Context(), settings{}, "stock"); err == nil || !strings.Contains(err.Error(), "out-of-stock") {
		t.Errorf("part of a name is answered %v", err)
	}
}

// serving opens a shop and serves until the test ends.
func serving(t *testing.T, s settings) (x *shop, url string) {
	t.Helper()
	s.Patience = cmp.Or(s.Patience, time.Minute)
	x, err := open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.close(); err != nil {
			t.Error(err)
		}
	})
	// Its work ends with close, which comes after the test's context.
	if url, err = x.start(context.WithoutCancel(t.Context()), "127.0.0.1:0", x.bill); err != nil {
		t.Fatal(err)
	}
	return x, url
}
