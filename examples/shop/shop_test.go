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
)

// The shop starts its services as processes of its own program.
func TestMain(m *testing.M) {
	if os.Getenv("SHOP_SERVICE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

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

// Whatever breaks while customers order, each order is in all databases or in none.
func TestNoOrderIsLostToTheFaults(t *testing.T) {
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
			c := &customers{shop: x, url: url, every: 20 * time.Millisecond, calm: 100 * time.Millisecond, trouble: time.Second}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var running sync.WaitGroup
			running.Go(func() { c.run(ctx) })
			wait(t, func() bool { deliver(t, x); return c.faults.Load() >= 7 && c.shipped.Load() > 2 }, "the load")
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

// deliver runs a round of a job, and retries what is parked.
func deliver(t *testing.T, x *shop) (left int) {
	job, err := asyncjob.New(x.storage, x.targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, UnknownDataSourceDelay: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	if report, err := job.RunOnce(t.Context()); err != nil {
		t.Fatalf("the job: %v, %v", report, err)
	}
	units, err := pending(t.Context(), x.storage)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		if u.Parked {
			t.Errorf("parked: %+v", u)
			if err := x.storage.Retry(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	return len(units)
}

// settle delivers the remaining entries, and compares the books.
func settle(t *testing.T, x *shop) {
	wait(t, func() bool { return deliver(t, x) == 0 }, "the log") // what a caller left waits until its lease is over
	var b books
	wait(t, func() bool {
		var err error
		if b, err = look(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		shippeds := slices.DeleteFunc(slices.Clone(b.Orders), func(o order) bool { return o.Status != shipped })
		return len(shippeds) == len(b.Bills)
	}, "the bills")
	if err := b.disagree(); err != nil {
		t.Error(err)
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

// servers puts the log and the orders into one database.
func servers(t *testing.T, nats, topic string) settings {
	one := testdb.MySQL(t).DSN
	return settings{
		Log: one, Orders: one, Stock: testdb.MySQL(t).DSN, Payments: testdb.Postgres(t).DSN,
		NATS: nats, Topic: topic,
	}
}

// A refused request leaves nothing in any database, although bedhttp commits the rows that go with
// a 4xx.
func TestRefusedOrderLeavesNothing(t *testing.T) {
	t.Parallel()
	x, url := serving(t, servers(t, "", "refused"))
	body := `{"article":"apple","n":3,"note":"` + strings.Repeat("n", 201) + `"}`
	response, _, err := post(t.Context(), http.MethodPost, url+"/orders", "a", body)
	if err != nil || response.StatusCode != http.StatusConflict {
		t.Fatalf("a note that is too long is answered %v, %v", response, err)
	}
	settle(t, x)
	if b, err := look(t.Context(), x); err != nil || len(b.Orders)+len(b.Reservations)+len(b.Charges) != 0 {
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
			response, _, err := post(ctx, http.MethodPost, url+"/orders", fmt.Sprint(n), `{"article":"plum","n":1}`)
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
	x, err := openShop(context.WithoutCancel(t.Context()), s)
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
