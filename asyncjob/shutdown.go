package asyncjob

import (
	"context"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

// writeGrace is how long verdicts may still be written after attempts in flight were cut
// off.
const writeGrace = 5 * time.Second

// shutdown ends work in three steps, one context after the other.
type shutdown struct {
	// ctx is the caller's: once it is done, no new work begins.
	ctx context.Context
	// flight ends ShutdownTimeout after ctx: it cuts off attempts in flight.
	flight context.Context
	// writes ends writeGrace after flight: later verdicts are left to the leases' end.
	writes context.Context
	end    func()
}

func newShutdown(ctx context.Context, timeout time.Duration) *shutdown {
	s := &shutdown{ctx: ctx}
	var endFlight, endWrites func()
	s.flight, endFlight = outlive(ctx, timeout)
	s.writes, endWrites = outlive(s.flight, writeGrace)
	s.end = func() {
		endWrites()
		endFlight()
	}
	return s
}

// outlive derives a context that ends d after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		jitter.Sleep(longer, d)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}
