package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneWish is for how long further signals count as the same wish as the first:
// ending a process group as well as the process sends two at once. Tests set it.
var oneWish = time.Second

// withSignals returns a context that the first SIGINT, SIGTERM or SIGHUP
// cancels, so that what is in flight is finished. One that comes more than
// oneWish later ends the process at once, as it does by default. A SIGHUP that is
// ignored, as nohup has it, stays so.
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
