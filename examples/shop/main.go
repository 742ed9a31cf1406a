// Shop is an application to look at: it takes orders, each of which is a row in one database
// and a row in another, written under one soft transaction, and breaks its own databases
// now and then. compose.yaml runs it beside a bed-job, in whose console the faults are seen.
//
// It reads its databases from the environment: BED_LOG_DSN and ORDERS_DSN, of MySQL or MariaDB,
// and LEDGER_DSN, of PostgreSQL. What it counts it tells at SHOP_LISTEN, for Prometheus.
package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		logrus.WithError(err).Fatal("the shop has ended")
	}
}

func serve(ctx context.Context) error {
	bus := listener.NewBus(nil)
	metrics := bedprom.New(bus)
	defer metrics.Close()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", bedprom.Handler(metrics))
	server := &http.Server{Addr: os.Getenv("SHOP_LISTEN"), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer func() { _ = server.Close() }()
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			logrus.WithError(err).Error("metrics are not served")
		}
	}()
	shop, err := open(ctx, settings{
		Log: os.Getenv("BED_LOG_DSN"), Orders: os.Getenv("ORDERS_DSN"), Ledger: os.Getenv("LEDGER_DSN"),
		Every: 50 * time.Millisecond, FaultEvery: 45 * time.Second, Bus: bus,
	})
	if err != nil {
		return err
	}
	defer shop.close()
	shop.run(ctx)
	return nil
}
