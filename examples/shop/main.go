// Shop is a whole application to read, to run and to break: three services, each with a database of
// its own. A customer orders by HTTP, under an Idempotency-Key. The orders service writes the order.
// The stock service reserves the articles, and the payments service charges the customer. All of that
// happens, or it is compensated. An event announces a shipped order, and its consumer writes one bill.
//
//	go run -C examples ./shop                  # SQLite and a broker in memory: no server
//	go run -C examples ./shop -fault declined  # shows a fault; all shows each, as in faults.txt
//
// The program starts stock and payments as processes of their own, which a fault can kill. With
// BED_LOG_DSN and ORDERS_DSN of one MySQL or MariaDB server, STOCK_DSN, PAYMENTS_DSN of PostgreSQL,
// and NATS_URL it runs on servers. With -service it is one of the three, as in compose.yaml.
//
// orders.go calls the services of services.go: read the two first. api.go is the customers' HTTP,
// open.go opens databases, broker and services, process.go starts processes. network.go, faults.go
// and load.go break them.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/bedsql/bed/asyncjob"
)

func main() {
	fault := flag.String("fault", "", "show what happens when `NAME` goes wrong: all, "+faultNames())
	service := flag.String("service", os.Getenv("SHOP_SERVICE"), "be the `NAME`d service alone: orders, stock or payments")
	addr := flag.String("listen", cmp.Or(os.Getenv("SHOP_LISTEN"), "127.0.0.1:8392"), "serve at `ADDRESS`")
	load := flag.Duration("load", 0, "have customers order every `PAUSE`, and break something now and then")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv("SHOP_ATTACHED") != "" { // started by start
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	s := settings{
		Log: os.Getenv("BED_LOG_DSN"), Orders: os.Getenv("ORDERS_DSN"), Stock: os.Getenv("STOCK_DSN"), Payments: os.Getenv("PAYMENTS_DSN"),
		NATS: os.Getenv("NATS_URL"), StockURL: os.Getenv("STOCK_URL"), PaymentsURL: os.Getenv("PAYMENTS_URL"), Token: os.Getenv("SHOP_TOKEN"),
	}
	var err error
	switch {
	case *fault != "":
		err = show(ctx, s, *fault)
	case *service == "stock", *service == "payments":
		err = serveOther(ctx, s, *service, *addr)
	case *service == "orders":
		err = serveOrders(ctx, s, *addr, *load)
	default:
		err = serve(ctx, s, *addr, *load)
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

// serve is the whole shop until ctx is done.
func serve(ctx context.Context, s settings, addr string, load time.Duration) error {
	x, err := openShop(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _ = x.close() }()
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
	return x.serve(ctx, addr, load)
}

// serveOrders is the orders service alone. bed-job delivers what is pending.
func serveOrders(ctx context.Context, s settings, addr string, load time.Duration) error {
	x, err := openOrders(ctx, s, newNetwork())
	if err != nil {
		return err
	}
	defer func() { _ = x.close() }()
	return (&shop{orders: x}).serve(ctx, addr, load)
}

func (x *shop) serve(ctx context.Context, addr string, load time.Duration) error {
	url, err := x.start(ctx, addr, x.bill)
	if err != nil {
		return err
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

// serveOther is the stock or the payments service until ctx is done. It prints its address.
func serveOther(ctx context.Context, s settings, name, addr string) error {
	o, err := openOther(ctx, s, name)
	if err != nil {
		return err
	}
	defer func() { _ = o.close() }()
	at, err := o.listen(addr, o.handler)
	if err != nil {
		return err
	}
	fmt.Println(at)
	<-ctx.Done()
	return nil
}

// listen serves handler at an address, until close.
func (r *resources) listen(addr string, handler http.Handler) (at string, err error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	r.closing = append(r.closing, func() error {
		wait, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(wait)
	})
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), nil
}
