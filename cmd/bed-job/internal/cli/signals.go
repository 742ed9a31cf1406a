package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneWish is for how long further signals count as the same wish as the first:
// ending a process group as well as the process sends two at once.
const oneWish = time.Second

// withSignals returns a context that the first SIGINT, SIGTERM or SIGHUP
// cancels, so that what is in flight is finished. One that comes more than
// oneWish later ends the process at once. A SIGHUP that is ignored, as nohup
// has it, stays so. complain is called by another goroutine.
func withSignals(parent context.Context, complain func(text string)) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(got, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case s := <-got:
				switch {
				case first.IsZero():
					first = time.Now()
					cancel()
				case time.Since(first) >= oneWish:
					complain(fmt.Sprintf("%v again, leaving at once", s))
					status := exitFailure
					if num, ok := s.(syscall.Signal); ok {
						status = 128 + int(num)
					}
					os.Exit(status)
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(done)
		cancel()
	}
}
