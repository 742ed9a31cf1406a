package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// customers order, while something breaks now and then.
type customers struct {
	*shop
	url string
	// every is the pause between two orders, and calm the pause between two faults. Each fault
	// lasts for trouble.
	every, calm, trouble time.Duration

	accepted, shipped, faults atomic.Int64
	// unanswered are the requests without an answer after three tries. Each must be sent again.
	unanswered []request
}

// request is what a customer sends.
type request struct{ path, key, body string }

// run goes on until ctx is done, and then finishes its work.
func (c *customers) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.breaks(ctx) })
	for told := time.Now(); ctx.Err() == nil; pause(ctx, c.every) {
		if order := c.post("/orders", `{"article":"plum","n":1}`, &c.accepted); order != "" {
			c.post(order+"/ship", `{"version":1}`, &c.shipped)
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Printf("%d orders accepted, %d shipped, %d faults made\n", c.accepted.Load(), c.shipped.Load(), c.faults.Load())
		}
	}
}

// post sends a request, up to three times, and counts it if it is accepted.
func (c *customers) post(path, body string, accepted *atomic.Int64) (location string) {
	r := request{path, uuid.NewString(), body}
	location, answered := c.send(r, accepted)
	if !answered {
		c.unanswered = append(c.unanswered, r)
	}
	return location
}

func (c *customers) send(r request, accepted *atomic.Int64) (location string, answered bool) {
	for range 3 {
		response, _, err := post(context.Background(), http.MethodPost, c.url+r.path, r.key, r.body)
		switch {
		case err == nil && response.StatusCode == http.StatusAccepted:
			accepted.Add(1)
			return response.Header.Get("Location"), true
		case err == nil && response.Header.Get("Retry-After") == "" && response.StatusCode != http.StatusInternalServerError:
			return "", true // refused
		}
		time.Sleep(c.every)
	}
	return "", false
}

// breaks cuts the network to a service, has it lose answers, or kills a service if this program has
// started it, in turn. Between two faults an order is shipped.
func (c *customers) breaks(ctx context.Context) {
	for n := 0; ; n++ {
		before := c.shipped.Load()
		for pause(ctx, c.calm); ctx.Err() == nil && c.shipped.Load() == before; {
			pause(ctx, c.every)
		}
		if ctx.Err() != nil {
			return
		}
		c.faults.Add(1)
		name := []string{"payments", "stock"}[n/3%2]
		switch p := c.others[name]; {
		case n%3 == 2 && p != nil:
			_ = p.kill()
			pause(ctx, c.trouble)
			// Its own context: it may be needed when the customers have gone.
			if err := p.start(context.WithoutCancel(ctx), ""); err != nil {
				fmt.Println(err)
			}
		default:
			c.network.becomes(name, []fate{cut, answersLost}[n%2])
			pause(ctx, c.trouble)
			c.network.becomes(name, well)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// post sends a request under a key, and reads its response.
func post(ctx context.Context, method, url, key, body string) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	return response, answer, err
}
