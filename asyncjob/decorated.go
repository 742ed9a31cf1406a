package asyncjob

import (
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/claim"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/order"
	"github.com/bedsql/bed/txlog"
)

// decorated works on a unit with a group or an order key. A plain unit enters neither this file nor
// the decorators.
func (u *claimed) decorated() claim.Result {
	if u.Compensating() { // its parts have receipts
		u.noReceipt = true
		u.parkedAs = "parked, half compensated: an operator must retry it, or undo the rest by hand and discard it"
	}
	work := u.Deliver
	if u.Unreadable == nil && u.Grouped() {
		work = group.Claimed{Job: u, Unit: u.Unit}.Deliver
	}
	if len(u.Order) > 0 {
		work = order.Claimed{Work: work, Freed: &u.drain.freed}.Deliver
	}
	return work()
}

// The other methods are what decorators use; see [claim.Job].
func (u *claimed) Try(part *entry.Unit, run attempt.Runner) (out attempt.Outcome, r claim.Result, delivered bool) {
	a := u.drain.try(part, run)
	u.attempted(a)
	if !u.lease.Lost() && a.Delivered() {
		return a.Outcome, r, true
	}
	if r = u.judge(a); r.Kind == claim.Open {
		r = u.Settle(a.Outcome)
	}
	return a.Outcome, r, false
}

func (u *claimed) States(ids ...string) (states []entry.State, ok bool) {
	ctx, cancel := context.WithTimeout(u.drain.flight, u.drain.job.cfg.Lease)
	defer cancel()
	states, err := u.drain.job.storage.States(ctx, ids...)
	if err != nil {
		u.Logger().WithField("error", dberr.DescribeLog(err)).Warn("the state of the group's entries could not be read")
	}
	return states, err == nil
}

func (u *claimed) Compensate(cause string) error {
	ctx, cancel := context.WithTimeout(u.drain.writes, u.drain.job.cfg.Lease)
	defer cancel()
	_, err := u.drain.job.storage.Compensate(ctx, u.TransactionID, 0, cause)
	if err != nil && !errors.Is(err, txlog.ErrNotFound) && !errors.Is(err, txlog.ErrLeased) {
		u.drain.notWritten("the compensation of group "+u.TransactionID, err)
	}
	return err
}

func (u *claimed) Describe(err error) string          { return u.drain.src.describe(err) }
func (u *claimed) RetryDelay(tries int) time.Duration { return u.drain.job.cfg.retryDelay(tries) }

func (u *claimed) Waits() (over bool) {
	if !u.drain.again {
		u.drain.tally.wait(u.drain.name)
	}
	return u.drain.again
}
