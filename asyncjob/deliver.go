package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// onReceiptDelay is how long a unit rests whose receipt was being written by
// another attempt.
const onReceiptDelay = time.Second

// kind is what became of a claimed unit.
type kind uint8

const (
	lost kind = iota
	delivered
	failed
	parked
	pushedBack
)

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
	default:
		c.Lost++
	}
}

// unit decides what to do with one claimed unit, and does it.
func (v *visit) unit(u *txlog.Unit) result {
	cfg := &v.round.job.cfg
	untouched := txlog.Verdict{InDoubt: u.InDoubt}
	switch {
	case v.round.job.keeper.Lost(u):
		return v.leaseLost(u)
	case v.round.ctx.Err() != nil, v.outage() != nil:
		return v.pushBack(u, untouched)
	case v.met(u):
		untouched.After = cfg.retryDelay(max(u.Tries, 1))
		return v.pushBack(u, untouched)
	case v.src == nil:
		untouched.After = cfg.UnknownDataSourceDelay
		untouched.Err = fmt.Sprintf("not delivered: data source %s is not among the job's targets; configure it", v.name)
		return v.pushBack(u, untouched)
	case u.Unreadable != nil:
		return v.park(u, delivery.Outcome{Err: u.Unreadable, Class: delivery.Refused}, untouched, u.Unreadable.Error())
	case u.NotReplayable != "" && u.Receipt == "":
		err := fmt.Errorf("it must not be run again: %s", u.NotReplayable)
		return v.park(u, delivery.Outcome{Err: err, Class: delivery.Refused}, untouched, err.Error())
	}
	if err := v.src.accepts(u); err != nil {
		if v.warnOnce() {
			v.unitLog(u).WithError(err).Warn("a unit waits, no try is counted; there may be more like it")
		}
		untouched.After, untouched.Err = cfg.UnknownDataSourceDelay, err.Error()
		return v.pushBack(u, untouched)
	}
	return v.deliver(u)
}

// deliver makes one attempt and judges it.
func (v *visit) deliver(u *txlog.Unit) result {
	job := v.round.job
	v.publish(listener.BeforeExecute, u, delivery.Outcome{})
	ctx, cancel := context.WithTimeout(v.round.flight, job.cfg.DeliveryTimeout)
	a := v.src.deliver(ctx, u)
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	cancel()
	if a.Delivered() {
		v.publish(listener.ExecuteSuccess, u, a.Outcome)
	} else {
		v.publish(listener.ExecuteFailure, u, a.Outcome)
	}
	return v.judge(u, a, late)
}

// judge decides what an attempt means for u. late: it was cut off by its timeout.
func (v *visit) judge(u *txlog.Unit, a attempt, late bool) result {
	if v.round.job.keeper.Lost(u) {
		return v.leaseLost(u)
	}
	if a.Delivered() {
		return v.done(u, a.Outcome)
	}
	if a.NoConn {
		return v.retryLater(u, a, late)
	}
	if a.Voided {
		verdict := txlog.Verdict{Err: a.Err.Error()}
		if u.NotReplayable != "" {
			verdict.Err = fmt.Sprintf("its COMMIT did not happen and never will, and it must not be run again by the job (%s): "+
				"the application has to do it anew", u.NotReplayable)
		}
		return v.park(u, a.Outcome, verdict, verdict.Err)
	}
	if a.OnReceipt {
		// Another attempt of it is in flight, or just was: no try.
		return v.pushBack(u, txlog.Verdict{InDoubt: u.InDoubt || a.Maybe(), After: onReceiptDelay, Err: a.Err.Error()})
	}
	if a.Class == delivery.Refused || a.Class == delivery.Duplicate {
		return v.park(u, a.Outcome, txlog.Verdict{InDoubt: u.InDoubt, CountTry: true}, v.src.describe(a.Err))
	}
	return v.retryLater(u, a, late)
}

// retryLater judges an attempt after which another may succeed.
func (v *visit) retryLater(u *txlog.Unit, a attempt, late bool) result {
	cfg := &v.round.job.cfg
	verdict := txlog.Verdict{InDoubt: u.InDoubt || a.Maybe(), Err: a.Err.Error()}
	said := v.src.describe(a.Err)
	if late && !a.Class.Answered() {
		noAnswer := fmt.Sprintf("no answer within %v: ", cfg.DeliveryTimeout)
		verdict.Err, said = noAnswer+verdict.Err, noAnswer+said
	}
	if v.round.flight.Err() != nil {
		return v.pushBack(u, verdict) // it was cut off, which is not its fault
	}
	if !a.Class.Answered() && v.probe() != nil || a.NoConn {
		// The unit rests all the same: should it be what brings the data
		// source down, those behind it come first next time.
		verdict.After = cfg.retryDelay(max(u.Tries, 1))
		return v.pushBack(u, verdict)
	}
	verdict.CountTry = true
	if tries := u.Tries + 1; tries < cfg.MaxDeliveryTryTimes {
		verdict.After = cfg.retryDelay(tries)
		return v.fail(u, verdict, said)
	}
	return v.park(u, a.Outcome, verdict, said)
}

// done leaves a delivered unit to be removed.
func (v *visit) done(u *txlog.Unit, out delivery.Outcome) result {
	if out.Found {
		v.unitLog(u).WithField("found", true).Info("delivered by an earlier attempt, as its receipt shows")
	} else if out.Assumed {
		v.unitLog(u).WithField("assumed", true).Warn("delivered, concluded from a duplicate key after an attempt of unknown outcome")
	} else if v.round.job.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		v.unitLog(u).Debug("delivered")
	}
	return result{kind: delivered, assumed: out.Assumed, found: out.Found}
}

// park leaves the unit for a person. said is what a log line may tell of why:
// no value of the application's.
func (v *visit) park(u *txlog.Unit, out delivery.Outcome, verdict txlog.Verdict, said string) result {
	verdict.Park = true
	if verdict.Err == "" {
		verdict.Err = out.Err.Error()
	}
	if !v.release(u, verdict) {
		return result{kind: lost}
	}
	v.unitLog(u).WithField("error", said).Error("parked: a person must retry or discard it")
	v.publish(listener.Parked, u, out)
	return result{kind: parked}
}

// fail lets the unit rest until its next try. said is as for park.
func (v *visit) fail(u *txlog.Unit, verdict txlog.Verdict, said string) result {
	if !v.release(u, verdict) {
		return result{kind: lost}
	}
	v.unitLog(u).WithField("error", said).
		Warnf("not delivered, next try in %v", verdict.After.Round(time.Millisecond))
	return result{kind: failed}
}

func (v *visit) pushBack(u *txlog.Unit, verdict txlog.Verdict) result {
	if !v.release(u, verdict) {
		return result{kind: lost}
	}
	return result{kind: pushedBack}
}

// release gives the unit up with a verdict; false if that could not be written.
func (v *visit) release(u *txlog.Unit, verdict txlog.Verdict) bool {
	v.rest(u)
	err := v.write(u, func(ctx context.Context) error { return v.round.job.storage.Release(ctx, u, verdict) })
	if err != nil {
		v.unitLog(u).WithField("error", delivery.DescribeLog(err)).Warn("what became of the unit could not be written to the log; " +
			"it is in doubt and will be claimed again when its lease has ended")
	}
	return err == nil
}

// write tells the log about u, again and again while the lease is kept.
func (v *visit) write(u *txlog.Unit, f func(context.Context) error) error {
	job := v.round.job
	_, err := backoff.Retry(v.round.writes, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(v.round.writes, job.cfg.Lease)
		defer cancel()
		job.keeper.Refresh(u)
		err := f(ctx)
		if err != nil && (errors.Is(err, txlog.ErrLeaseLost) || job.keeper.Lost(u)) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(storeBackOff()), backoff.WithMaxElapsedTime(0))
	return err
}

// leaseLost says nothing to the log: the unit is somebody else's.
func (v *visit) leaseLost(u *txlog.Unit) result {
	v.unitLog(u).Warn("the lease was lost: it is not known what became of the unit, another job may be delivering it")
	return result{kind: lost}
}

func (v *visit) publish(t listener.EventType, u *txlog.Unit, out delivery.Outcome) {
	if bus := v.round.job.cfg.Bus; bus.Listening() {
		bus.Publish(listener.NewEvent(t, listener.AsyncJob, u, out))
	}
}

// unitLog never gets a parameter's value: only what names the unit.
func (v *visit) unitLog(u *txlog.Unit) logrus.FieldLogger {
	return v.logger().WithFields(logrus.Fields{"log": u.ID, "transaction": u.TransactionID, "tries": u.Tries})
}
