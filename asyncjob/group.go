package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// reviewEvery is how often the job re-examines a group that is neither finished nor due for
// compensation. Usually its caller decides: this is for a caller that is gone.
const reviewEvery = time.Minute

// neverDone is the cause of a compensation after a void receipt of a part: the caller
// decided so and may have died before the compensation, or the compensation has started
// elsewhere.
const neverDone = "a part of it is not applied and never will be, as its receipt shows"

// grouped handles units of compensable groups. It returns false if the unit should be
// delivered as usual.
func (u *claimed) grouped() (r result, done bool) {
	switch {
	case u.Unreadable != nil:
		return r, false
	case u.Undo != nil && !u.Compensating():
		return u.review(), true
	case u.Group() && u.Overdue():
		met := u.look()
		if verdict, again := u.asksAgain(u.drain.src, met); again {
			return u.pushBack(verdict), true
		}
		if !met.Found {
			return u.compensate(u.overdue(), u.overdue())
		}
	}
	return r, false
}

// unasked reports whether the lookup of a receipt failed.
func unasked(met attempt.Outcome) bool { return met.Err != nil && met.Class != dialect.Refused }

// doubtful begins the error of a unit that was pushed back after a failed receipt lookup in
// its group; the name of the data source follows.
const doubtful = "whether its group is delivered could not be asked of "

// asksAgain decides whether to retry a failed receipt lookup on src. It retries once, and
// never while src is unreachable. The unit is then pushed back with verdict.
func (u *claimed) asksAgain(src *source, met attempt.Outcome) (verdict entry.Verdict, again bool) {
	if !unasked(met) {
		return verdict, false
	}
	verdict.InDoubt = u.InDoubt
	if u.drain.flight.Err() != nil || src == u.drain.src && u.drain.down.get() != nil {
		return verdict, true // that says nothing of it
	}
	doubt := doubtful + src.name + ": "
	verdict.After, verdict.Err = u.drain.job.cfg.retryDelay(1), doubt+met.Err.Error()
	return verdict, !src.isDown() && !strings.HasPrefix(u.LastError, doubt)
}

func (u *claimed) overdue() string {
	return fmt.Sprintf("it was not delivered within %v", u.CompensateAfter)
}

// review decides about a group whose compensation has not started: the group is complete
// when all its forward units are delivered.
func (u *claimed) review() result {
	ids := make([]string, len(u.Undo.Parts))
	for i, p := range u.Undo.Parts {
		ids[i] = p.Unit
	}
	ctx, cancel := context.WithTimeout(u.drain.flight, u.drain.job.cfg.Lease)
	states, err := u.drain.job.storage.States(ctx, ids...)
	cancel()
	verdict := entry.Verdict{InDoubt: u.InDoubt, After: reviewEvery}
	if err != nil {
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the state of the group's entries could not be read")
		return u.pushBack(verdict)
	}
	left, cause := 0, ""
	for i, s := range states {
		switch s {
		case entry.StateDelivered, entry.StateUnknown: // all were written with the compensation
			continue
		case entry.StateDiscarded:
			cause = fmt.Sprintf("the entry %s was discarded", ids[i])
		case entry.StateWaiting, entry.StateParked:
		}
		left++
	}
	if left > 0 && cause == "" && u.Overdue() {
		switch met, doubt, again := u.missing(states); {
		case again:
			return u.pushBack(doubt)
		case !met.Found:
			cause = u.overdue()
		case strings.HasPrefix(u.LastError, doubtful):
			verdict.Err = "its parts are delivered, as their receipts show"
		}
	}
	switch {
	case left == 0: // while the lease is kept its compensation has not started
		u.logger().Info("the group is delivered: its compensation is not needed")
		return result{kind: delivered}
	case cause != "":
		if r, started := u.compensate(cause, cause); started {
			return r
		}
	case u.CompensateAfter > 0:
		verdict.After = min(verdict.After, max(u.CompensateAfter-u.ReadAt.Sub(u.CreatedAt), 0))
	}
	return u.pushBack(verdict)
}

// missing looks for the receipts of the parts whose entries are still in the log: a late
// write to the log has brought them back, or their caller died before their removal. met is
// the outcome for the first part without one; doubt and again come from asksAgain.
func (u *claimed) missing(states []entry.State) (met attempt.Outcome, doubt entry.Verdict, again bool) {
	met.Found = true
	for i, s := range states {
		if s == entry.StateDelivered || s == entry.StateUnknown {
			continue
		}
		part := u.Part(i)
		src := u.drain.job.sources[part.DataSource]
		if src == nil {
			return attempt.Outcome{}, doubt, false
		}
		if met = u.lookAt(src, part); !met.Found {
			doubt, again = u.asksAgain(src, met)
			return met, doubt, again
		}
	}
	return met, doubt, false
}

// compensate starts the compensation of the unit's group. said is the cause for a log line. started
// is false if the compensation is no longer in the log.
func (u *claimed) compensate(cause, said string) (r result, started bool) {
	ctx, cancel := context.WithTimeout(u.drain.writes, u.drain.job.cfg.Lease)
	defer cancel()
	_, err := u.drain.job.storage.Compensate(ctx, u.TransactionID, 0, cause)
	switch {
	case errors.Is(err, txlog.ErrNotFound):
		return r, false
	case err != nil && !errors.Is(err, txlog.ErrLeased): // else it is running already
		u.drain.notWritten("the compensation of group "+u.TransactionID, err)
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the compensation of the group could not be started in the log; the job tries again")
		return u.pushBack(entry.Verdict{InDoubt: u.InDoubt, After: shortly}), true
	}
	u.logger().WithField("cause", said).Warn("the group's compensation starts")
	if u.Undo != nil {
		return result{kind: pushedBack}, true
	}
	return result{kind: refused}, true
}

// refusedPart starts the compensation for a refused forward unit, unless the unit's receipt
// shows that it is applied. After a failed lookup the unit is tried once more.
func (u *claimed) refusedPart(a try) result {
	met := u.look()
	if met.Found {
		return u.delivered(met)
	}
	if verdict, again := u.asksAgain(u.drain.src, met); again {
		return u.pushBack(verdict)
	}
	if r, started := u.compensate(a.Err.Error(), u.drain.src.describe(a.Err)); started {
		return r
	}
	return u.park(a.Outcome, entry.Verdict{InDoubt: u.InDoubt, CountTry: true}, u.drain.src.describe(a.Err))
}

// undo undoes the parts of a group on this data source, then moves the rest to its next one.
func (u *claimed) undo() result {
	d := u.drain
	last, here := attempt.Outcome{}, false
	for _, n := range u.Undo.Order() {
		to := u.Undo.Parts[n].DataSource
		switch {
		case to != d.name && !here:
			continue // it came from there
		case to != d.name:
			u.logger().WithField("next", to).Info("the group's part here is compensated")
			return u.pushBack(entry.Verdict{InDoubt: u.InDoubt, DataSource: to})
		}
		here = true
		part := u.Part(n)
		if err := d.src.accepts(part); err != nil {
			return u.block(err)
		}
		a := d.try(part)
		u.attempted(a)
		if u.lease.Lost() || !a.Delivered() {
			return u.judge(a)
		}
		last = a.Outcome
	}
	if !here {
		err := fmt.Errorf("the group has no part in %s", d.name)
		return u.park(attempt.Outcome{Err: err, Class: dialect.Refused}, entry.Verdict{InDoubt: u.InDoubt}, err.Error())
	}
	u.logger().Info("the group is compensated")
	return u.delivered(last)
}
