package asyncjob

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// incomplete begins the error of a message that is parked because a part of its group was
// discarded. A claimed message with this error was retried by an operator.
const incomplete = "not all of its group is written: "

// longestWait is the longest pause between two checks of a message that waits.
const longestWait = time.Minute

// waits gives a message back, without a try, until its group's rows are written. It parks
// the message if they never will be.
func (u *claimed) waits() (r result, waits bool) {
	if len(u.After) == 0 {
		return r, false
	}
	ctx, cancel := context.WithTimeout(u.drain.flight, u.drain.job.cfg.Lease)
	states, err := u.drain.job.storage.States(ctx, u.After...)
	cancel()
	verdict := entry.Verdict{InDoubt: u.InDoubt}
	if err != nil {
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the state of the group's entries could not be read")
		verdict.After = shortly
		return u.pushBack(verdict), true
	}
	released := strings.HasPrefix(u.LastError, incomplete)
	waiting := ""
	for i, s := range states {
		switch {
		case s == entry.StateDiscarded && !released:
			err := fmt.Errorf("%sentry %s was discarded; retry the message to publish it all the same, or discard it", incomplete, u.After[i])
			return u.park(attempt.Outcome{Err: err, Class: dialect.Refused}, verdict, err.Error()), true
		case s == entry.StateWaiting, s == entry.StateParked:
			waiting = fmt.Sprintf("it is published once entry %s of its group is delivered, which is %s", u.After[i], s)
		}
	}
	if waiting == "" {
		return r, false
	}
	if !released {
		verdict.Err = waiting
	}
	if verdict.After = u.drain.job.cfg.retryDelay(1); u.drain.again {
		verdict.After = min(verdict.After, max(u.ReadAt.Sub(u.CreatedAt)/8, time.Second), longestWait)
	} else { // the round looks again when it has served the other data sources
		verdict.After = 0
		u.drain.tally.wait(u.drain.name)
	}
	return u.pushBack(verdict), true
}
