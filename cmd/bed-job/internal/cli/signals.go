package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// withSignals returns a context that the first SIGINT or SIGTERM cancels, so
// that what is in flight is finished. The second ends the process at once.
func withSignals(parent context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-got:
				if n == 0 {
					cancel()
					continue
				}
				fmt.Fprintf(stderr, "bed-job: %v again, leaving at once\n", s)
				status := exitFailure
				if num, ok := s.(syscall.Signal); ok {
					status = 128 + int(num)
				}
				os.Exit(status)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(done)
		cancel()
	}
}
