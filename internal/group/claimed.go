package group

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/claim"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// reviewEvery is how often the job re-examines a group that is neither finished nor due for
// compensation. Usually its caller decides: this is for a caller that is gone.
const reviewEvery = time.Minute

// neverDone is the cause of a compensation after a void receipt of a part: the caller decided so
// and may have died before the compensation, or the compensation has started elsewhere.
const neverDone = "a part of it is not applied and never will be, as its receipt shows"

// doubtful begins the error of a unit that was pushed back after a failed receipt lookup in its
// group; the name of the data source follows.
const doubtful = "whether its group is delivered could not be asked of "

// Claimed is the work of a job on a readable unit of a group.
type Claimed struct {
	claim.Job
	*entry.Unit
}

// Deliver compensates the group, or reviews it, or delivers one of its units.
func (c Claimed) Deliver() claim.Result {
	switch {
	case c.Compensating():
		return c.undo()
	case c.Undo != nil:
		return c.review()
	case c.Group() && c.Overdue():
		if _, r, done := c.unlessApplied(c.overdue(), c.overdue()); done {
			return r
		}
	}
	out, r := c.Attempt(c.waits)
	switch {
	case r.Kind != claim.Open:
		return r
	case !c.Group():
		return c.Settle(out)
	case out.Voided:
		return c.voided()
	}
	met, r, done := c.unlessApplied(out.Err.Error(), c.Describe(out.Err))
	switch {
	case done:
		return r
	case met.Found:
		return c.Finish(met)
	}
	return c.Settle(out)
}

func (c Claimed) overdue() string {
	return fmt.Sprintf("it was not delivered within %v", c.CompensateAfter)
}

// voided starts the compensation for a unit whose receipt is void. If the log no longer has the
// compensation, it removes the unit.
func (c Claimed) voided() claim.Result {
	if r, started := c.compensate(neverDone, neverDone); started {
		return r
	}
	if !c.Remove(txlog.ErrLeaseLost) {
		return claim.Result{}
	}
	c.Logger().Info("not delivered: its group is compensated")
	return claim.Result{Kind: claim.Refused}
}

// unlessApplied starts the compensation for a unit that gets no further try. done is false for a
// unit with a receipt (met), and without a compensation in the log.
func (c Claimed) unlessApplied(cause, said string) (met attempt.Outcome, r claim.Result, done bool) {
	met, part, doubt := c.look(c.DataSource, c.Unit)
	switch (Known{Over: true, Parts: []Part{part}}).Decide() {
	case AskAgain:
		return met, c.PushBack(doubt), true
	case Compensate:
		r, done = c.compensate(cause, said)
	}
	return met, r, done
}

// look looks up the receipt of a part. After a failure it is Unasked: the unit is pushed back with
// doubt, to look once more. After a second failure, or while the data source is down, it is Missing.
func (c Claimed) look(dataSource string, of *entry.Unit) (met attempt.Outcome, part Part, doubt entry.Verdict) {
	met, cut, down := c.Look(dataSource, of)
	part, doubt.InDoubt = receipt(met), c.InDoubt
	if part != Unasked || cut {
		return met, part, doubt
	}
	asked := doubtful + dataSource + ": "
	doubt.After, doubt.Err = c.RetryDelay(1), asked+met.Err.Error()
	if down || strings.HasPrefix(c.LastError, asked) {
		part = Missing
	}
	return met, part, doubt
}

// review decides about a group whose compensation has not started.
func (c Claimed) review() claim.Result {
	ids := make([]string, len(c.Undo.Parts))
	for i, p := range c.Undo.Parts {
		ids[i] = p.Unit
	}
	verdict := entry.Verdict{InDoubt: c.InDoubt, After: reviewEvery}
	states, ok := c.States(ids...)
	if !ok {
		return c.PushBack(verdict)
	}
	known, cause := Known{Over: c.Overdue(), Parts: make([]Part, len(states))}, c.overdue()
	for i, s := range states {
		switch s {
		case entry.StateDelivered, entry.StateUnknown: // all were written with the compensation
			known.Parts[i] = Delivered
		case entry.StateDiscarded:
			known.Parts[i], cause = Refused, fmt.Sprintf("the entry %s was discarded", ids[i])
		}
	}
	decision, doubt := known.Decide(), entry.Verdict{}
	// A late write to the log has brought the entries back, or their caller died before their removal.
	for i := 0; decision == AskAgain && i < len(ids); i++ {
		if known.Parts[i] != Waiting {
			continue
		}
		if _, known.Parts[i], doubt = c.look(c.Undo.Parts[i].DataSource, c.Part(i)); known.Parts[i] == Unasked {
			break
		}
		decision = known.Decide()
	}
	switch decision {
	case Complete: // while the lease is kept its compensation has not started
		c.Logger().Info("the group is delivered: its compensation is not needed")
		return claim.Result{Kind: claim.Delivered}
	case Compensate:
		if r, started := c.compensate(cause, cause); started {
			return r
		}
	case AskAgain:
		return c.PushBack(doubt)
	case LeaveOpen:
		if known.Over && strings.HasPrefix(c.LastError, doubtful) {
			verdict.Err = "its parts are delivered, as their receipts show"
		}
		if c.CompensateAfter > 0 {
			verdict.After = min(verdict.After, max(c.CompensateAfter-c.ReadAt.Sub(c.CreatedAt), 0))
		}
	}
	return c.PushBack(verdict)
}

// compensate starts the compensation of the unit's group. said is the cause for a log line. started
// is false if the compensation is no longer in the log.
func (c Claimed) compensate(cause, said string) (r claim.Result, started bool) {
	switch err := c.Compensate(cause); {
	case errors.Is(err, txlog.ErrNotFound):
		return r, false
	case err != nil && !errors.Is(err, txlog.ErrLeased): // else it is running already
		c.Logger().WithField("error", dberr.DescribeLog(err)).Warn("the compensation of the group could not be started in the log; the job tries again")
		return c.PushBack(entry.Verdict{InDoubt: c.InDoubt, After: claim.Shortly}), true
	}
	c.Logger().WithField("cause", said).Warn("the group's compensation starts")
	if c.Undo != nil {
		return claim.Result{Kind: claim.PushedBack}, true
	}
	return claim.Result{Kind: claim.Refused}, true
}

// undo undoes the parts of a group on this data source, then moves the rest to its next one.
func (c Claimed) undo() claim.Result {
	last, here := attempt.Outcome{}, false
	for _, n := range c.Undo.Order() {
		part := c.Part(n)
		switch to := part.DataSource; {
		case to != c.DataSource && !here:
			continue // it came from there
		case to != c.DataSource:
			c.Logger().WithField("next", to).Info("the group's part here is compensated")
			return c.PushBack(entry.Verdict{InDoubt: c.InDoubt, DataSource: to})
		}
		here = true
		if r, ready := c.Ready(part); !ready {
			return r
		}
		out, r, undone := c.Try(part, attempt.Undo)
		if !undone {
			return r
		}
		last = out
	}
	if !here {
		err := fmt.Errorf("the group has no part in %s", c.DataSource)
		return c.Park(attempt.Outcome{Err: err, Class: dialect.Refused}, entry.Verdict{InDoubt: c.InDoubt}, err.Error())
	}
	c.Logger().Info("the group is compensated")
	r := c.Finish(last)
	r.Undone = true
	return r
}

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
