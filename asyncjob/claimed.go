package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// shortly is how long a unit rests with good prospects: another attempt was writing its
// receipt, or the data source was read-only.
const shortly = time.Second

// contendedMost is how long contention does not count as a try.
const contendedMost = 24 * time.Hour

type kind uint8

const (
	lost kind = iota
	delivered
	failed
	parked
	pushedBack
	refused
	kinds
)

// result is the outcome of a claimed unit, and its evidence. The zero value means a lost
// unit.
type result struct {
	kind    kind
	assumed bool
	found   bool
}

func (r result) count(c *DataSourceReport) {
	*c.of(r.kind)++
	if r.assumed {
		c.Assumed++
	}
}

// claimed is a unit that this job owns: the job makes one attempt and judges it.
type claimed struct {
	*entry.Unit
	drain *drain
	lease *lease.Kept
	// joined is set if it was delivered together with others.
	joined bool
	result result
	// was is the kind of result left by its worker.
	was kind
	// kind is its kind; nil if unknown. counted is its count in the queue, if any. tried is set
	// after a failed attempt, other than one on a receipt.
	kind    *kindOfUnit
	counted *int
	tried   bool
	// first is set for the first of the units that its worker took together.
	first bool
	// failed holds the failed attempts, for operators.
	failed []journal.Attempt
}

// joins reports whether the unit can share a transaction: it is due for delivery now, and
// its outcome does not depend on a receipt or an earlier attempt.
func (u *claimed) joins() bool {
	d := u.drain
	return d.src != nil && d.ctx.Err() == nil && d.down.get() == nil && !u.lease.Lost() &&
		u.Unreadable == nil && u.NotReplayable == "" && u.Receipt == "" && u.Undo == nil && !u.InDoubt && !d.src.sendsMessages() && d.src.accepts(u.Unit) == nil
}

// failedBefore reports whether the last attempt at u, or the last ones at its kind, failed.
func (u *claimed) failedBefore() bool {
	return u.Tries > 0 || u.ContendedFrom > 0 || u.kind != nil && u.kind.failed >= failsAt
}

// rested reports whether the unit was given back earlier in this round, without a retry by
// an operator since.
func (u *claimed) rested() bool {
	_, met := u.drain.rested.Load(u.ID)
	return met && !u.AtOnce
}

// end ends the work on the unit.
func (u *claimed) end() {
	u.lease.Release()
	switch u.result.kind {
	case delivered:
		u.drain.counts.Count(journal.AsyncJob, 1)
	case parked:
		u.drain.counts.Count(journal.Parked, 1)
	}
	u.drain.note(u.result.count)
}

// attend decides what to do with the unit, and does it.
func (u *claimed) attend() result {
	d := u.drain
	untouched := entry.Verdict{InDoubt: u.InDoubt}
	switch {
	case u.lease.Lost():
		return u.leaseLost()
	case d.ctx.Err() != nil, d.down.get() != nil:
		return u.pushBack(untouched)
	}
	if r, done := u.grouped(); done {
		return r
	}
	switch {
	case d.src == nil:
		return u.block(d.unknown())
	case u.Unreadable != nil:
		return u.park(attempt.Outcome{Err: u.Unreadable, Class: dialect.Refused}, untouched, u.Unreadable.Error())
	case u.NotReplayable != "" && u.Receipt == "":
		err := fmt.Errorf("it must not be run again: %s", u.NotReplayable)
		return u.park(attempt.Outcome{Err: err, Class: dialect.Refused}, untouched, err.Error())
	case u.Receipt != "" && d.noReceipts.get() != nil:
		return u.block(d.noReceipts.get())
	case u.Compensating():
		return u.undo()
	}
	if err := d.src.accepts(u.Unit); err != nil {
		return u.block(err)
	}
	if r, waits := u.waits(); waits {
		return r
	}
	return u.deliver()
}

// deliver makes one attempt and judges it.
func (u *claimed) deliver() result {
	u.publish(listener.BeforeExecute, attempt.Outcome{}, 0)
	if u.drain.job.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		u.logger().Debug("delivering")
	}
	a := u.drain.try(u.Unit)
	u.attempted(a)
	return u.judge(a)
}

// judge decides about the unit after an attempt.
func (u *claimed) judge(a try) result {
	d := u.drain
	if u.lease.Lost() {
		return u.leaseLost()
	}
	if a.Delivered() {
		return u.delivered(a.Outcome)
	}
	if !a.NoConn && !a.OnReceipt { // else it was not tried
		u.failed = append(u.failed, journal.Attempt{At: time.Now(), Origin: listener.AsyncJob.String(), Class: a.Class.String(), Err: a.Err.Error()})
	}
	verdict := entry.Verdict{InDoubt: u.InDoubt || a.Maybe(), Err: a.Err.Error()}
	if d.flight.Err() != nil && (!a.Class.Answered() || a.Class.Later()) {
		verdict.Err = "" // it was cut off by the end of the job, which says nothing of it
		return u.pushBack(verdict)
	}
	if errors.As(a.Err, new(*target.ElsewhereError)) {
		return u.block(a.Err)
	}
	if _, ok := d.src.needsOperator(a.Err); ok {
		d.noReceipts.set(a.Err)
		return u.block(a.Err)
	}
	switch {
	case a.readOnly:
		d.wentDown(a.Err)
		verdict.After = shortly
		return u.pushBack(verdict)
	case a.NoConn:
		return u.retryLater(a, verdict)
	case a.Voided && u.Group():
		if r, started := u.compensate(neverDone, neverDone); started {
			return r
		}
		return u.remove(a.Outcome)
	case a.Reported:
		return u.remove(a.Outcome)
	case a.Voided:
		verdict := entry.Verdict{Err: a.Err.Error()}
		if u.NotReplayable != "" {
			verdict.Err = fmt.Sprintf("its COMMIT did not happen and never will, and it must not be run again by the job (%s): "+
				"the application has to do it anew", u.NotReplayable)
		}
		return u.park(a.Outcome, verdict, verdict.Err)
	case a.OnReceipt:
		// Another attempt is in flight, or was just now: this is not a try.
		verdict.After = shortly
		return u.pushBack(verdict)
	case a.Class == dialect.Contention:
		return u.contended(a, verdict)
	case a.Class == dialect.Refused, a.Class == dialect.Duplicate:
		if u.Group() {
			return u.refusedPart(a)
		}
		return u.park(a.Outcome, entry.Verdict{InDoubt: u.InDoubt, CountTry: true}, d.src.describe(a.Err))
	}
	return u.retryLater(a, verdict)
}

// contended judges an attempt that met other transactions. The unit is not at fault: for a
// day this does not count as a try.
func (u *claimed) contended(a try, verdict entry.Verdict) result {
	verdict.Contended = true
	took := time.Duration(0)
	if u.ContendedFrom > 0 {
		took = u.ReadAt.Sub(u.ContendedSince())
	}
	if took >= contendedMost {
		return u.retryLater(a, verdict)
	}
	verdict.After = jitter.Pause(2 * max(shortly, min(took/2, u.drain.job.cfg.RetryDelay)))
	u.logger().WithFields(logrus.Fields{"error": u.drain.src.describe(a.Err), "contended_for": took.Round(time.Second).String()}).
		Info("not delivered: other transactions were in the way; no try is counted")
	return u.pushBack(verdict)
}

// retryLater judges an attempt that may succeed later.
func (u *claimed) retryLater(a try, verdict entry.Verdict) result {
	d, cfg := u.drain, &u.drain.job.cfg
	said := d.src.describe(a.Err)
	if a.late && !a.Class.Answered() {
		noAnswer := fmt.Sprintf("no answer within %v: ", cfg.DeliveryTimeout)
		verdict.Err, said = noAnswer+verdict.Err, noAnswer+said
	}
	if !a.Class.Answered() && d.probe() != nil || a.NoConn {
		if d.flight.Err() != nil {
			verdict.Err = ""
		}
		// The unit rests all the same: if it brings the data source down, the units after it come
		// first next time.
		verdict.After = cfg.retryDelay(max(u.Tries, 1))
		return u.pushBack(verdict)
	}
	verdict.CountTry = true
	if tries := u.Tries + 1; tries < cfg.MaxDeliveryTryTimes {
		verdict.After = cfg.retryDelay(tries)
		r := u.release(verdict, failed)
		if r.kind == failed {
			d.failures.tell(u.logger(), logrus.WarnLevel, "not delivered", said, verdict.After)
		}
		return r
	}
	return u.park(a.Outcome, verdict, said)
}

// delivered leaves the unit to its removal.
func (u *claimed) delivered(out attempt.Outcome) result {
	if out.Found {
		u.logger().WithField("found", true).Info("delivered by an earlier attempt, as its receipt shows")
	} else if out.Assumed {
		u.logger().WithField("assumed", true).Warn("delivered, concluded from a duplicate key after an attempt of unknown outcome")
	}
	u.drain.delivered.Store(true)
	return result{kind: delivered, assumed: out.Assumed, found: out.Found}
}

// look looks up the unit's receipt: despite an obstacle to its delivery, an earlier attempt
// may have applied it.
func (u *claimed) look() (met attempt.Outcome) {
	if u.Receipt == "" || u.Undo != nil || u.drain.src == nil {
		return attempt.Outcome{}
	}
	return u.lookAt(u.drain.src, u.Unit)
}

// lookAt looks up the receipt of a unit on src.
func (u *claimed) lookAt(src *source, of *entry.Unit) attempt.Outcome {
	ctx, cancel := context.WithTimeout(u.drain.flight, u.drain.job.cfg.ProbeTimeout)
	defer cancel()
	return src.look(ctx, of)
}

// park leaves the unit for an operator, unless its receipt proves its delivery. After a
// failed lookup it does not alarm an operator yet. said is the reason for a log line,
// without values of the application.
func (u *claimed) park(out attempt.Outcome, verdict entry.Verdict, said string) result {
	if !out.Voided { // else its receipt says that it is not
		switch met := u.look(); {
		case met.Found:
			return u.delivered(met)
		case unasked(met):
			verdict.CountTry, verdict.After = false, u.drain.job.cfg.retryDelay(u.Tries+1)
			verdict.Err = fmt.Sprintf("%v; it is parked once its receipt can be asked for: %v", out.Err, met.Err)
			u.drain.failures.tell(u.logger(), logrus.WarnLevel, "neither delivered nor parked: its receipt cannot be asked for", said, verdict.After)
			return u.pushBack(verdict)
		}
	}
	verdict.Park = true
	if verdict.Err == "" {
		verdict.Err = out.Err.Error()
	}
	r := u.release(verdict, parked)
	if r.kind == parked {
		what := "parked: an operator must retry or discard it"
		if u.Compensating() {
			what = "parked, half compensated: an operator must retry it, or undo the rest by hand and discard it"
		}
		u.drain.failures.tell(u.logger(), logrus.ErrorLevel, what, said, -1)
		u.publish(listener.Parked, out, 0)
	}
	return r
}

// remove erases the entries of a refusal after its caller's answer.
func (u *claimed) remove(out attempt.Outcome) result {
	ctx, cancel := context.WithTimeout(u.drain.writes, u.drain.job.cfg.DeliveryTimeout)
	defer cancel()
	if err := u.drain.job.storage.Remove(ctx, u.Unit); u.Group() && (err == nil || errors.Is(err, txlog.ErrLeaseLost)) {
		u.logger().Info("not delivered: its group is compensated")
		return result{kind: refused}
	} else if err != nil {
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the entry of a write that was refused could not be removed")
		return result{kind: lost}
	}
	u.logger().Info("removed: the write was refused and its caller told; its entry came back late")
	u.publish(listener.Removed, out, 0)
	return result{kind: refused}
}

// block pushes the unit back for a reason that only an operator can fix, unless its receipt
// proves its delivery.
func (u *claimed) block(cause error) result {
	said, ok := u.drain.src.needsOperator(cause)
	if !ok {
		said = cause.Error()
	}
	u.drain.block(u.logger(), cause, said)
	if met := u.look(); met.Found {
		return u.delivered(met)
	}
	return u.pushBack(entry.Verdict{
		InDoubt: u.InDoubt, After: u.drain.job.cfg.UnknownDataSourceDelay, Err: untilAnOperatorActs + cause.Error(),
	})
}

// pushBack gives the unit back without a try.
func (u *claimed) pushBack(verdict entry.Verdict) result { return u.release(verdict, pushedBack) }

// release gives the unit up with a verdict and returns the result as; lost if writing the
// verdict failed for the duration of a lease.
func (u *claimed) release(verdict entry.Verdict, as kind) result {
	job := u.drain.job
	verdict.Attempts = u.failed
	u.drain.rested.Store(u.ID, true)
	_, err := backoff.Retry(u.drain.writes, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(u.drain.writes, job.cfg.Lease)
		defer cancel()
		u.lease.Refresh()
		err := job.storage.Release(ctx, u.Unit, verdict)
		if err != nil && (errors.Is(err, txlog.ErrLeaseLost) || u.lease.Lost()) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(storeBackOff()), backoff.WithMaxElapsedTime(job.cfg.Lease))
	if err != nil {
		u.drain.notWritten("the outcome of unit "+u.ID, err)
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the outcome of the unit could not be written to the log; " +
			"it is in doubt and will be claimed again when its lease has ended")
		return result{kind: lost}
	}
	return result{kind: as}
}

// leaseLost makes no write to the log: the unit has another owner.
func (u *claimed) leaseLost() result {
	u.logger().Warn("the lease was lost: the outcome of the unit is unknown, another job may be delivering it")
	return result{kind: lost}
}

func (u *claimed) publish(t listener.EventType, out attempt.Outcome, took time.Duration) {
	if bus := u.drain.job.cfg.Bus; bus.Listening() {
		ev := out.Event(t, listener.AsyncJob, u.Unit)
		ev.Took = took
		bus.Publish(ev)
	}
}

// attempted publishes the end of an attempt.
func (u *claimed) attempted(a try) {
	u.tried = u.tried || !a.Delivered() && !a.NoConn
	t := listener.ExecuteSuccess
	if !a.Delivered() {
		t = listener.ExecuteFailure
	}
	u.publish(t, a.Outcome, a.took)
}

// logger never gets a parameter's value, only the names of the unit.
func (u *claimed) logger() logrus.FieldLogger {
	return u.drain.logger().WithFields(logrus.Fields{"entry": u.ID, "transaction": u.TransactionID, "tries": u.Tries})
}
