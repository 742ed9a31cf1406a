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
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// shortly is how long a unit rests that may well be delivered then: its receipt
// was being written by another attempt, or the data source took no writes.
const shortly = time.Second

type kind uint8

const (
	lost kind = iota
	delivered
	failed
	parked
	pushedBack
	refused
)

// result is what became of a claimed unit, and how it is known. The zero value
// is of one that is lost.
type result struct {
	kind    kind
	assumed bool
	found   bool
}

func (r result) count(c *DataSourceReport) {
	switch r.kind {
	case delivered:
		c.Delivered++
		if r.assumed {
			c.Assumed++
		}
	case failed:
		c.Failed++
	case parked:
		c.Parked++
	case pushedBack:
		c.PushedBack++
	case refused:
		c.Refused++
	default:
		c.Lost++
	}
}

// claimed is a unit that this job owns: one attempt is made at it, and judged.
type claimed struct {
	*txlog.Unit
	drain *drain
	lease *lease.Kept
	// joined: it was delivered together with others.
	joined bool
	result result
	// failed are the attempts that failed, for operators.
	failed []txlog.Attempt
}

// joins reports whether there is nothing special about the unit: it is to be
// delivered now, and its outcome does not depend on a receipt or an earlier
// attempt.
func (u *claimed) joins() bool {
	d := u.drain
	return d.src != nil && d.ctx.Err() == nil && d.outage() == nil && !u.lease.Lost() && !d.met(u.Unit) &&
		u.Unreadable == nil && u.NotReplayable == "" && u.Receipt == "" && !u.InDoubt && d.src.accepts(u.Unit) == nil
}

// sameSettings reports whether two units are delivered in the same session.
func (u *claimed) sameSettings(o *claimed) bool {
	return u.Settings == o.Settings && u.SettingsOlder == o.SettingsOlder
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

// work decides what to do with the unit, and does it.
func (u *claimed) work() { u.result = u.attend() }

func (u *claimed) attend() result {
	d, cfg := u.drain, &u.drain.job.cfg
	untouched := txlog.Verdict{InDoubt: u.InDoubt}
	switch {
	case u.lease.Lost():
		return u.leaseLost()
	case d.ctx.Err() != nil, d.outage() != nil:
		return u.pushBack(untouched)
	case d.met(u.Unit):
		untouched.After = cfg.retryDelay(max(u.Tries, 1))
		return u.pushBack(untouched)
	case d.src == nil:
		return u.block(fmt.Errorf("not delivered: data source %s is not among the job's targets; configure it", d.name))
	case u.Unreadable != nil:
		return u.park(attempt.Outcome{Err: u.Unreadable, Class: delivery.Refused}, untouched, u.Unreadable.Error())
	case u.NotReplayable != "" && u.Receipt == "":
		err := fmt.Errorf("it must not be run again: %s", u.NotReplayable)
		return u.park(attempt.Outcome{Err: err, Class: delivery.Refused}, untouched, err.Error())
	case u.Receipt != "" && d.withoutReceipts() != nil:
		return u.block(d.withoutReceipts())
	}
	if err := d.src.accepts(u.Unit); err != nil {
		d.block(u.logger(), err, err.Error())
		return u.block(err)
	}
	return u.deliver()
}

// deliver makes one attempt and judges it.
func (u *claimed) deliver() result {
	d := u.drain
	u.publish(listener.BeforeExecute, attempt.Outcome{})
	if d.job.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		u.logger().Debug("delivering")
	}
	ctx, cancel := context.WithTimeout(d.flight, d.job.cfg.DeliveryTimeout)
	begun := time.Now()
	a := d.src.deliver(ctx, u.Unit)
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	cancel()
	u.tell(a.Outcome, begun)
	return u.judge(a, late)
}

// judge decides what an attempt means for the unit. late: it was cut off by its
// timeout.
func (u *claimed) judge(a try, late bool) result {
	d := u.drain
	if u.lease.Lost() {
		return u.leaseLost()
	}
	if a.Delivered() {
		return u.delivered(a.Outcome)
	}
	if !a.NoConn && !a.OnReceipt { // else it was not tried
		u.failed = append(u.failed, txlog.Attempt{At: time.Now(), Origin: listener.AsyncJob.String(), Class: a.Class.String(), Err: a.Err.Error()})
	}
	verdict := txlog.Verdict{InDoubt: u.InDoubt || a.Maybe(), Err: a.Err.Error()}
	if d.flight.Err() != nil && (!a.Class.Answered() || a.Class == delivery.Retryable) {
		verdict.Err = "" // it was cut off by the end of the job, which says nothing of it
		return u.pushBack(verdict)
	}
	place, schema := (*placeError)(nil), (*attempt.SchemaError)(nil)
	if errors.As(a.Err, &place) || errors.As(a.Err, &schema) {
		d.block(u.logger(), a.Err, a.Err.Error())
		return u.block(a.Err)
	}
	if said, ok := d.src.needsOperator(a.Err); ok {
		d.lackReceipts(a.Err)
		d.block(u.logger(), a.Err, said)
		return u.block(a.Err)
	}
	switch {
	case a.readOnly:
		d.wentDown(a.Err)
		verdict.After = shortly
		return u.pushBack(verdict)
	case a.NoConn:
		return u.retryLater(a, late, verdict)
	case a.Told:
		return u.remove(a.Outcome)
	case a.Voided:
		verdict := txlog.Verdict{Err: a.Err.Error()}
		if u.NotReplayable != "" {
			verdict.Err = fmt.Sprintf("its COMMIT did not happen and never will, and it must not be run again by the job (%s): "+
				"the application has to do it anew", u.NotReplayable)
		}
		return u.park(a.Outcome, verdict, verdict.Err)
	case a.OnReceipt:
		// Another attempt of it is in flight, or just was: no try.
		verdict.After = shortly
		return u.pushBack(verdict)
	case a.Class == delivery.Refused, a.Class == delivery.Duplicate:
		return u.park(a.Outcome, txlog.Verdict{InDoubt: u.InDoubt, CountTry: true}, d.src.describe(a.Err))
	}
	return u.retryLater(a, late, verdict)
}

// retryLater judges an attempt after which another may succeed.
func (u *claimed) retryLater(a try, late bool, verdict txlog.Verdict) result {
	d, cfg := u.drain, &u.drain.job.cfg
	said := d.src.describe(a.Err)
	if late && !a.Class.Answered() {
		noAnswer := fmt.Sprintf("no answer within %v: ", cfg.DeliveryTimeout)
		verdict.Err, said = noAnswer+verdict.Err, noAnswer+said
	}
	if !a.Class.Answered() && d.probe() != nil || a.NoConn {
		if d.flight.Err() != nil {
			verdict.Err = ""
		}
		// The unit rests all the same: should it be what brings the data
		// source down, those after it come first next time.
		verdict.After = cfg.retryDelay(max(u.Tries, 1))
		return u.pushBack(verdict)
	}
	verdict.CountTry = true
	if tries := u.Tries + 1; tries < cfg.MaxDeliveryTryTimes {
		verdict.After = cfg.retryDelay(tries)
		return u.fail(verdict, said)
	}
	return u.exhausted(a, verdict, said)
}

// exhausted ends the tries of the unit: it is parked, unless its receipt shows
// that it is applied. While that cannot be found out no operator is alarmed.
func (u *claimed) exhausted(a try, verdict txlog.Verdict, said string) result {
	d, cfg := u.drain, &u.drain.job.cfg
	if u.Receipt != "" && (verdict.InDoubt || u.Fingerprint != "") {
		ctx, cancel := context.WithTimeout(d.flight, cfg.ProbeTimeout)
		met := d.src.look(ctx, u.Unit)
		cancel()
		switch {
		case met.Found:
			return u.delivered(met)
		case met.Err != nil && met.Class != delivery.Refused:
			verdict.CountTry, verdict.After = false, cfg.retryDelay(u.Tries+1)
			return u.pushBack(verdict)
		}
	}
	return u.park(a.Outcome, verdict, said)
}

// delivered leaves the unit to be removed.
func (u *claimed) delivered(out attempt.Outcome) result {
	if out.Found {
		u.logger().WithField("found", true).Info("delivered by an earlier attempt, as its receipt shows")
	} else if out.Assumed {
		u.logger().WithField("assumed", true).Warn("delivered, concluded from a duplicate key after an attempt of unknown outcome")
	} else if u.drain.job.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		u.logger().Debug("delivered")
	}
	u.drain.markDelivered()
	return result{kind: delivered, assumed: out.Assumed, found: out.Found}
}

// park leaves the unit for an operator. said is what a log line may tell of why:
// no value of the application's.
func (u *claimed) park(out attempt.Outcome, verdict txlog.Verdict, said string) result {
	verdict.Park = true
	if verdict.Err == "" {
		verdict.Err = out.Err.Error()
	}
	if !u.release(verdict) {
		return result{kind: lost}
	}
	u.logger().WithField("error", said).Error("parked: an operator must retry or discard it")
	u.publish(listener.Parked, out)
	return result{kind: parked}
}

// remove erases the entries of a refusal that its caller was told.
func (u *claimed) remove(out attempt.Outcome) result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.drain.flight), u.drain.job.cfg.DeliveryTimeout)
	defer cancel()
	if err := u.drain.job.storage.Remove(ctx, u.Unit); err != nil {
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("the entry of a write that was refused could not be removed")
		return result{kind: lost}
	}
	u.logger().Info("removed: the write was refused and its caller told; its entry came back late")
	u.publish(listener.Removed, out)
	return result{kind: refused}
}

// fail lets the unit rest until its next try. said is as for park.
func (u *claimed) fail(verdict txlog.Verdict, said string) result {
	if !u.release(verdict) {
		return result{kind: lost}
	}
	u.logger().WithField("error", said).
		Warnf("not delivered, next try in %v", verdict.After.Round(time.Millisecond))
	return result{kind: failed}
}

// block pushes the unit back for a reason that only an operator can mend.
func (u *claimed) block(cause error) result {
	return u.pushBack(txlog.Verdict{
		InDoubt: u.InDoubt, After: u.drain.job.cfg.UnknownDataSourceDelay, Err: untilAnOperatorActs + cause.Error(),
	})
}

// pushBack gives the unit back without a try.
func (u *claimed) pushBack(verdict txlog.Verdict) result {
	if !u.release(verdict) {
		return result{kind: lost}
	}
	return result{kind: pushedBack}
}

// release gives the unit up with a verdict; false if that could not be written
// within a lease.
func (u *claimed) release(verdict txlog.Verdict) bool {
	job := u.drain.job
	verdict.Attempts = u.failed
	u.drain.rest(u.Unit)
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
		u.drain.notWritten("what became of unit "+u.ID, err)
		u.logger().WithField("error", dberr.DescribeLog(err)).Warn("what became of the unit could not be written to the log; " +
			"it is in doubt and will be claimed again when its lease has ended")
	}
	return err == nil
}

// leaseLost says nothing to the log: the unit is somebody else's.
func (u *claimed) leaseLost() result {
	u.logger().Warn("the lease was lost: it is not known what became of the unit, another job may be delivering it")
	return result{kind: lost}
}

func (u *claimed) publish(t listener.EventType, out attempt.Outcome) {
	if bus := u.drain.job.cfg.Bus; bus.Listening() {
		bus.Publish(out.Event(t, listener.AsyncJob, u.Unit))
	}
}

// tell tells listeners of an attempt that began at begun.
func (u *claimed) tell(out attempt.Outcome, begun time.Time) {
	bus := u.drain.job.cfg.Bus
	if !bus.Listening() {
		return
	}
	t := listener.ExecuteSuccess
	if !out.Delivered() {
		t = listener.ExecuteFailure
	}
	ev := out.Event(t, listener.AsyncJob, u.Unit)
	ev.Took = ev.Time.Sub(begun)
	bus.Publish(ev)
}

// logger never gets a parameter's value: only what names the unit.
func (u *claimed) logger() logrus.FieldLogger {
	return u.drain.logger().WithFields(logrus.Fields{"entry": u.ID, "transaction": u.TransactionID, "tries": u.Tries})
}
