// Shop is an application to look at: it takes orders, each of which is a row in one database
// and a row in another, written under one soft transaction, and breaks its own databases
// now and then. compose.yaml runs it beside a bed-job, in whose console the faults are seen.
//
// It reads its databases from the environment: BED_LOG_DSN, ORDERS_DSN and LEDGER_DSN, with
// BED_LOG_DRIVER, ORDERS_DRIVER (both mysql) and LEDGER_DRIVER (postgres).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
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

// serve runs the shop and tells what it counts at SHOP_LISTEN.
func serve(ctx context.Context) error {
	s := settings{
		Log:    place{env("BED_LOG_DRIVER", "mysql"), os.Getenv("BED_LOG_DSN")},
		Orders: place{env("ORDERS_DRIVER", "mysql"), os.Getenv("ORDERS_DSN")},
		Ledger: place{env("LEDGER_DRIVER", "postgres"), os.Getenv("LEDGER_DSN")},
	}
	perSecond, err := strconv.Atoi(env("SHOP_ORDERS_PER_SECOND", "20"))
	if err != nil || perSecond < 1 {
		return errors.New("SHOP_ORDERS_PER_SECOND must be a number from 1 on")
	}
	s.Every = time.Second / time.Duration(perSecond)
	if s.FaultEvery, err = time.ParseDuration(env("SHOP_FAULT_EVERY", "45s")); err != nil || s.FaultEvery < time.Second {
		return errors.New("SHOP_FAULT_EVERY must be a duration from 1s on")
	}
	s.Bus = listener.NewBus(nil)
	metrics := bedprom.New(s.Bus)
	defer metrics.Close()
	if listen := os.Getenv("SHOP_LISTEN"); listen != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", bedprom.Handler(metrics))
		server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		defer func() { _ = server.Close() }()
		go func() {
			if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				logrus.WithError(err).Error("metrics are not served")
			}
		}()
	}
	shop, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer shop.close()
	told := time.NewTicker(10 * time.Second)
	defer told.Stop()
	go func() {
		for range told.C {
			fmt.Println(shop.counts.String())
		}
	}()
	return shop.run(ctx)
}

func env(name, otherwise string) string { return cmp.Or(os.Getenv(name), otherwise) }
