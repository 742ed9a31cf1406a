// Shop is a whole application to read, to run and to break. Orders come in by HTTP, each under an
// Idempotency-Key. An order changes three databases: either all of them, or the change is
// compensated. An event announces a shipped order, and its consumer writes one bill.
//
//	go run -C examples ./shop                      # SQLite and a broker in memory: no server
//	go run -C examples ./shop -fault out-of-stock  # shows a fault; all shows each, as in faults.txt
//
// With BED_LOG_DSN, ORDERS_DSN and STOCK_DSN, of one MySQL or MariaDB server, LEDGER_DSN, of
// PostgreSQL, and NATS_URL it runs on servers, as in compose.yaml.
//
// shop.go is the shop's own work: read it first. api.go is HTTP, open.go opens the databases and
// the broker, faults.go and load.go break them.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/bedsql/bed/asyncjob"
	bedmessage "github.com/bedsql/bed/bedsql/message"
)

func main() {
	fault := flag.String("fault", "", "show what happens when `NAME` goes wrong: all, "+faultNames())
	addr := flag.String("listen", cmp.Or(os.Getenv("SHOP_LISTEN"), "127.0.0.1:8392"), "serve the API and /metrics at `ADDRESS`")
	load := flag.Duration("load", 0, "have customers order every `PAUSE`, and break the ledger now and then")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := settings{
		Log: os.Getenv("BED_LOG_DSN"), Orders: os.Getenv("ORDERS_DSN"), Stock: os.Getenv("STOCK_DSN"),
		Ledger: os.Getenv("LEDGER_DSN"), NATS: os.Getenv("NATS_URL"),
	}
	var err error
	if *fault == "" {
		err = serve(ctx, s, *addr, *load)
	} else {
		err = show(ctx, s, *fault)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the shop has ended:", err)
		os.Exit(1)
	}
}

// show shows faults, each in a shop of its own.
func show(ctx context.Context, s settings, name string) error {
	known := name == "all"
	for _, f := range faults {
		if name == "all" || name == f.name {
			known = true
			if err := f.show(ctx, s, os.Stdout); err != nil {
				return err
			}
		}
	}
	if !known {
		return fmt.Errorf("there is no fault %q, but %s", name, faultNames())
	}
	return nil
}

// serve serves the API until ctx is done.
func serve(ctx context.Context, s settings, addr string, load time.Duration) error {
	x, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _ = x.close() }()
	url, err := x.start(ctx, addr, x.bill)
	if err != nil {
		return err
	}
	if !x.atHome { // on servers bed-job delivers what is pending
		job, err := asyncjob.New(x.storage, x.targets, asyncjob.Config{MaxDeliveryTryDelay: 5 * time.Second})
		if err != nil {
			return err
		}
		defer job.Close()
		go func() {
			if err := job.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "the job has ended:", err)
			}
		}()
	}
	fmt.Printf("The shop is open until you press Ctrl-C. Order three apples, then ask for the order at its Location:\n\n"+
		"  curl -i -H 'Idempotency-Key: a' -d '{\"article\":\"apple\",\"n\":3}' %s/orders\n\n", url)
	if load > 0 {
		c := &customers{shop: x, url: url, every: load, calm: 40 * time.Second, trouble: 5 * time.Second}
		c.run(ctx)
	}
	<-ctx.Done()
	return nil
}

// start serves the API at an address, until close, and has handle consume the events.
func (x *shop) start(ctx context.Context, addr string, handle bedmessage.Handler) (url string, err error) {
	handler, err := api{x}.handler()
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	x.closing = append(x.closing, func() error {
		wait, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(wait)
	})
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), x.consume(ctx, handle)
}
