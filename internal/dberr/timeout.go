package dberr

import (
	"context"
	"time"
)

// TimedOut reports whether the timeout of bounded, which was made from ctx, is over, while
// ctx goes on. It goes by the clock: a driver's dial has a deadline of its own, and may give
// up a moment before the context's timer fires.
func TimedOut(ctx, bounded context.Context) bool {
	return passed(bounded) && !passed(ctx) && ctx.Err() == nil
}

func passed(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && !time.Now().Before(end)
}
