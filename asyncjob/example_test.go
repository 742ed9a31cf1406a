package asyncjob_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/txlog"
)

// This is a process of its own, or a goroutine of the application. It delivers until a signal ends
// it.
func ExampleJob_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	storage, err := txlog.Open(ctx, "mysql", "bed@tcp(127.0.0.1:3306)/translog")
	if err != nil {
		log.Panic(err)
	}
	defer storage.Close()
	orders, err := mysql.Target("orders@tcp(127.0.0.1:3306)/orders?bedDataSource=orders") // as in the applications' DSNs
	if err != nil {
		log.Panic(err)
	}
	job, err := asyncjob.New(storage, asyncjob.Targets{orders.DataSource: orders}, asyncjob.Config{
		MaxDeliveryTryTimes: 5,
	})
	if err != nil {
		log.Panic(err)
	}
	defer job.Close()
	if err := job.Run(ctx); err != nil {
		log.Panic(err)
	}
}

// This is for applications with their own scheduler.
func ExampleJob_RunOnce() {
	job, err := asyncjob.New(txlog.NewMemory(), nil, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay,
		RetryDelay:          10 * time.Second,
	})
	if err != nil {
		log.Panic(err)
	}
	defer job.Close()
	report, err := job.RunOnce(context.Background())
	if err != nil {
		log.Print(err) // the report holds what was done all the same
	}
	fmt.Println("delivered", report.Delivered, "parked", report.Parked)
	// Output: delivered 0 parked 0
}
