package group

import (
	"fmt"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/claim"
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
func (c Claimed) waits() (r claim.Result, waits bool) {
	if len(c.After) == 0 {
		return r, false
	}
	verdict := entry.Verdict{InDoubt: c.InDoubt}
	states, ok := c.States(c.After...)
	if !ok {
		verdict.After = claim.Shortly
		return c.PushBack(verdict), true
	}
	released := strings.HasPrefix(c.LastError, incomplete)
	waiting := ""
	for i, s := range states {
		switch {
		case s == entry.StateDiscarded && !released:
			err := fmt.Errorf("%sentry %s was discarded; retry the message to publish it all the same, or discard it", incomplete, c.After[i])
			return c.Park(attempt.Outcome{Err: err, Class: dialect.Refused}, verdict, err.Error()), true
		case s == entry.StateWaiting, s == entry.StateParked:
			waiting = fmt.Sprintf("it is published once entry %s of its group is delivered, which is %s", c.After[i], s)
		}
	}
	if waiting == "" {
		return r, false
	}
	if !released {
		verdict.Err = waiting
	}
	if c.Waits() { // else the round looks again when it has served the other data sources
		verdict.After = min(c.RetryDelay(1), max(c.ReadAt.Sub(c.CreatedAt)/8, time.Second), longestWait)
	}
	return c.PushBack(verdict), true
}
