package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneWish is the time in which further signals count as one with the first: ending a process group
// as well as the process sends two at once. Tests set it.
var oneWish = time.Second

// withSignals returns a context canceled by the first SIGINT, SIGTERM or SIGHUP, so that running
// work can finish. A further signal more than oneWish later ends the process at once, as by
// default. An ignored SIGHUP, as under nohup, stays ignored.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	context.AfterFunc(ctx, func() {
		time.Sleep(oneWish)
		stop()
	})
	return ctx, stop
}
