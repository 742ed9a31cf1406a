package asyncjob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/claim"
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

// contendedMost is how long contention does not count as a try.
const contendedMost = 24 * time.Hour

// claimed is a unit that this job owns: the job makes one attempt and judges it.
type claimed struct {
	*entry.Unit
	drain *drain
	lease *lease.Kept
	// joined is set if it was delivered together with others.
	joined bool
	result claim.Result
	// was is the kind of result left by its worker.
	was claim.Kind
	// kind is its kind; nil if unknown. counted is its count in the queue, if any. tried is set
	// after a failed attempt, other than one on a receipt.
	kind    *kindOfUnit
	counted *int
	tried   bool
	// first is set for the first of the units that its worker took together.
	first bool
	// failed holds the failed attempts, for operators.
	failed []journal.Attempt
	// noReceipt means that an attempt at it leaves no receipt. parkedAs replaces the log line of its
	// parking.
	noReceipt bool
	parkedAs  string
}

// joins reports whether the unit can share a transaction: it is due for delivery now, and
// its outcome does not depend on a receipt or an earlier attempt.
func (u *claimed) joins() bool {
	d := u.drain
	return d.src != nil && d.ctx.Err() == nil && d.down.get() == nil && !u.lease.Lost() &&
		u.Unreadable == nil && u.NotReplayable == "" && u.Receipt == "" && u.Plain() && !u.InDoubt && d.src.isSQL() && d.src.accepts(u.Unit) == nil
}

// traits are what a queue needs to know of a unit. They stay while it waits.
type traits struct {
	kind           *kindOfUnit
	failed, atOnce bool
}

func (u *claimed) traits() traits {
	return traits{u.kind, u.Tries > 0 || u.ContendedFrom > 0, u.AtOnce}
}

// failedBefore reports whether the last attempt at the unit, or the last ones at its kind,
// failed.
func (t traits) failedBefore() bool {
	return t.failed || t.kind != nil && t.kind.failed >= failsAt
}

func (u *claimed) failedBefore() bool { return u.traits().failedBefore() }

// rested reports whether the unit was given back earlier in this round, without a retry by
// an operator since.
func (u *claimed) rested() bool {
	_, met := u.drain.rested.Load(u.ID)
	return met && !u.AtOnce
}

// end ends the work on the unit.
func (u *claimed) end() {
	u.lease.Release()
	switch u.result.Kind {
	case claim.Delivered:
		u.drain.counts.Count(journal.AsyncJob, 1)
	case claim.Parked:
		u.drain.counts.Count(journal.Parked, 1)
	}
	u.drain.note(func(r *DataSourceReport) { r.count(u.result) })
}

// attend works on the unit, if the job may still begin.
func (u *claimed) attend() claim.Result {
	switch d := u.drain; {
	case u.lease.Lost():
		return u.leaseLost()
	case d.ctx.Err() != nil, d.down.get() != nil:
		return u.PushBack(entry.Verdict{InDoubt: u.InDoubt})
	case !u.Plain():
		return u.decorated()
	}
	return u.Deliver()
}

// Deliver delivers a plain unit.
func (u *claimed) Deliver() claim.Result {
	out, r := u.Attempt(nil)
	if r.Kind == claim.Open {
		return u.Settle(out)
	}
	return r
}

// Ready, Attempt and Settle are steps of the delivery; see [claim.Job].
func (u *claimed) Ready(part *entry.Unit) (r claim.Result, ready bool) {
	untouched := entry.Verdict{InDoubt: u.InDoubt}
	switch d := u.drain; {
	case d.src == nil:
		return u.block(d.unknown()), false
	case u.Unreadable != nil:
		return u.Park(attempt.Outcome{Err: u.Unreadable, Class: dialect.Refused}, untouched, u.Unreadable.Error()), false
	case u.NotReplayable != "" && u.Receipt == "":
		err := fmt.Errorf("it must not be run again: %s", u.NotReplayable)
		return u.Park(attempt.Outcome{Err: err, Class: dialect.Refused}, untouched, err.Error()), false
	case u.Receipt != "" && d.noReceipts.get() != nil:
		return u.block(d.noReceipts.get()), false
	}
	if err := u.drain.src.accepts(part); err != nil {
		return u.block(err), false
	}
	return r, true
}

func (u *claimed) Attempt(waits func() (claim.Result, bool)) (out attempt.Outcome, r claim.Result) {
	if r, ready := u.Ready(u.Unit); !ready {
		return out, r
	}
	if waits != nil {
		if r, waiting := waits(); waiting {
			return out, r
		}
	}
	u.publish(listener.BeforeExecute, attempt.Outcome{}, 0)
	if u.drain.job.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		u.Logger().Debug("delivering")
	}
	run := attempt.Replay
	if u.NotReplayable != "" { // its receipt decides
		run = attempt.Void
	}
	a := u.drain.try(u.Unit, run)
	u.attempted(a)
	return a.Outcome, u.judge(a)
}

// judge decides about the unit after an attempt.
func (u *claimed) judge(a try) claim.Result {
	d := u.drain
	if u.lease.Lost() {
		return u.leaseLost()
	}
	if a.Delivered() {
		return u.Finish(a.Outcome)
	}
	if !a.NoConn && !a.OnReceipt { // else it was not tried
		u.failed = append(u.failed, journal.Attempt{At: time.Now(), Origin: listener.AsyncJob.String(), Class: a.Class.String(), Err: a.Err.Error()})
	}
	verdict := entry.Verdict{InDoubt: u.InDoubt || a.Maybe(), Err: a.Err.Error()}
	if d.flight.Err() != nil && (!a.Class.Answered() || a.Class.Later()) {
		verdict.Err = "" // it was cut off by the end of the job, which says nothing of it
		return u.PushBack(verdict)
	}
	advice := dialect.AdviceOf(a.Err)
	if u.InDoubt = u.InDoubt && !advice.Final; advice.Operator || errors.As(a.Err, new(*target.ElsewhereError)) {
		u.InDoubt = verdict.InDoubt
		return u.block(a.Err)
	}
	if _, ok := d.src.needsOperator(a.Err); ok {
		d.noReceipts.set(a.Err)
		return u.block(a.Err)
	}
	switch {
	case a.readOnly:
		d.wentDown(a.Err)
		verdict.After = claim.Shortly
		return u.PushBack(verdict)
	case a.NoConn:
		return u.retryLater(a, verdict)
	case a.Voided:
		return claim.Result{Kind: claim.Open}
	case a.OnReceipt:
		// Another attempt is in flight, or was just now: this is not a try.
		verdict.After = claim.Shortly
		return u.PushBack(verdict)
	case a.Class == dialect.Contention, advice.Busy:
		return u.contended(a, verdict)
	case a.Class == dialect.Refused, a.Class == dialect.Duplicate:
		return claim.Result{Kind: claim.Open}
	}
	return u.retryLater(a, verdict)
}

func (u *claimed) Settle(out attempt.Outcome) claim.Result {
	switch {
	case out.Reported:
		if !u.Remove(nil) {
			return claim.Result{}
		}
		u.Logger().Info("removed: the write was refused and its caller told; its entry came back late")
		u.publish(listener.Removed, out, 0)
		return claim.Result{Kind: claim.Refused}
	case out.Voided:
		verdict := entry.Verdict{Err: out.Err.Error()}
		if u.NotReplayable != "" {
			verdict.Err = fmt.Sprintf("its COMMIT did not happen and never will, and it must not be run again by the job (%s): "+
				"the application has to do it anew", u.NotReplayable)
		}
		return u.Park(out, verdict, verdict.Err)
	}
	return u.Park(out, entry.Verdict{InDoubt: u.InDoubt, CountTry: true}, u.Describe(out.Err))
}

// contended judges an attempt that met other transactions. The unit is not at fault: for a
// day this does not count as a try.
func (u *claimed) contended(a try, verdict entry.Verdict) claim.Result {
	verdict.Contended = true
	took := time.Duration(0)
	if u.ContendedFrom > 0 {
		took = u.ReadAt.Sub(u.ContendedSince())
	}
	if took >= contendedMost {
		return u.retryLater(a, verdict)
	}
	verdict.After = u.after(a, jitter.Pause(2*max(claim.Shortly, min(took/2, u.drain.job.cfg.RetryDelay))))
	u.Logger().WithFields(logrus.Fields{"error": u.drain.src.describe(a.Err), "contended_for": took.Round(time.Second).String()}).
		Info("not delivered: other transactions were in the way; no try is counted")
	return u.PushBack(verdict)
}

// after is the pause before the next try: the data source's wish, if that is longer than own.
func (u *claimed) after(a try, own time.Duration) time.Duration {
	return max(own, min(dialect.AdviceOf(a.Err).After, u.drain.job.cfg.RetryDelayMax))
}

// retryLater judges an attempt that may succeed later.
func (u *claimed) retryLater(a try, verdict entry.Verdict) claim.Result {
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
		return u.PushBack(verdict)
	}
	verdict.CountTry = true
	if tries := u.Tries + 1; tries < cfg.MaxDeliveryTryTimes {
		verdict.After = u.after(a, cfg.retryDelay(tries))
		r := u.release(verdict, claim.Failed)
		if r.Kind == claim.Failed {
			d.failures.tell(u.Logger(), logrus.WarnLevel, "not delivered", said, verdict.After)
		}
		return r
	}
	return u.Park(a.Outcome, verdict, said)
}

// Finish leaves the unit to its removal.
func (u *claimed) Finish(out attempt.Outcome) claim.Result {
	if out.Found {
		u.Logger().WithField("found", true).Info("delivered by an earlier attempt, as its receipt shows")
	} else if out.Assumed {
		u.Logger().WithField("assumed", true).Warn("delivered, concluded from a duplicate key after an attempt of unknown outcome")
	}
	u.drain.delivered.Store(true)
	return claim.Result{Kind: claim.Delivered, Assumed: out.Assumed, Found: out.Found}
}

// look looks up the unit's receipt: despite an obstacle to its delivery, an earlier attempt
// may have applied it.
func (u *claimed) look() (met attempt.Outcome) {
	if u.Receipt == "" || u.noReceipt {
		return met
	}
	met, _, _ = u.Look(u.drain.name, u.Unit)
	return met
}

// Look is part of [claim.Job].
func (u *claimed) Look(dataSource string, of *entry.Unit) (met attempt.Outcome, cut, down bool) {
	d := u.drain
	src := d.job.sources[dataSource]
	if src == nil {
		return met, false, false
	}
	ctx, cancel := context.WithTimeout(d.flight, d.job.cfg.ProbeTimeout)
	defer cancel()
	met = src.look(ctx, of)
	return met, d.flight.Err() != nil || src == d.src && d.down.get() != nil, src.isDown()
}

// Park leaves the unit for an operator, unless its receipt proves its delivery. After a
// failed lookup it does not alarm an operator yet. said is the reason for a log line,
// without values of the application.
func (u *claimed) Park(out attempt.Outcome, verdict entry.Verdict, said string) claim.Result {
	if !out.Voided { // else its receipt says that it is not
		switch met := u.look(); {
		case met.Found:
			return u.Finish(met)
		case met.Unasked():
			verdict.CountTry, verdict.After = false, u.drain.job.cfg.retryDelay(u.Tries+1)
			verdict.Err = fmt.Sprintf("%v; it is parked once its receipt can be asked for: %v", out.Err, met.Err)
			u.drain.failures.tell(u.Logger(), logrus.WarnLevel, "neither delivered nor parked: its receipt cannot be asked for", said, verdict.After)
			return u.PushBack(verdict)
		}
	}
	verdict.Park = true
	if verdict.Err == "" {
		verdict.Err = out.Err.Error()
	}
	r := u.release(verdict, claim.Parked)
	if r.Kind == claim.Parked {
		u.drain.failures.tell(u.Logger(), logrus.ErrorLevel, cmp.Or(u.parkedAs, "parked: an operator must retry or discard it"), said, -1)
		u.publish(listener.Parked, out, 0)
	}
	return r
}

// Remove removes the entry of a refusal; see [claim.Job].
func (u *claimed) Remove(gone error) bool {
	ctx, cancel := context.WithTimeout(u.drain.writes, u.drain.job.cfg.DeliveryTimeout)
	defer cancel()
	err := u.drain.job.storage.Remove(ctx, u.Unit)
	if err == nil || gone != nil && errors.Is(err, gone) {
		return true
	}
	u.Logger().WithField("error", dberr.DescribeLog(err)).Warn("the entry of a write that was refused could not be removed")
	return false
}

// block pushes the unit back for a reason that only an operator can fix, unless its receipt
// proves its delivery.
func (u *claimed) block(cause error) claim.Result {
	said, ok := u.drain.src.needsOperator(cause)
	var shown interface{ Shown() string }
	switch {
	case ok:
	case errors.As(cause, &shown):
		said = shown.Shown()
	default:
		said = cause.Error()
	}
	u.drain.block(u.Logger(), cause, said)
	if met := u.look(); met.Found {
		return u.Finish(met)
	}
	return u.PushBack(entry.Verdict{
		InDoubt: u.InDoubt, After: u.drain.job.cfg.UnknownDataSourceDelay, Err: untilAnOperatorActs + cause.Error(),
	})
}

// PushBack gives the unit back without a try.
func (u *claimed) PushBack(verdict entry.Verdict) claim.Result {
	return u.release(verdict, claim.PushedBack)
}

// release gives the unit up with a verdict and returns the result as; lost if writing the
// verdict failed for the duration of a lease.
func (u *claimed) release(verdict entry.Verdict, as claim.Kind) claim.Result {
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
		u.Logger().WithField("error", dberr.DescribeLog(err)).Warn("the outcome of the unit could not be written to the log; " +
			"it is in doubt and will be claimed again when its lease has ended")
		return claim.Result{}
	}
	return claim.Result{Kind: as}
}

// leaseLost makes no write to the log: the unit has another owner.
func (u *claimed) leaseLost() claim.Result {
	u.Logger().Warn("the lease was lost: the outcome of the unit is unknown, another job may be delivering it")
	return claim.Result{}
}

func (u *claimed) publish(t listener.EventType, out attempt.Outcome, took time.Duration) {
	if bus := u.drain.job.cfg.Bus; bus.Listening() {
		d := &dialect.Dialect{}
		if src := u.drain.src; src != nil {
			d = src.own.Dialect
		}
		ev := out.Event(t, listener.AsyncJob, u.Unit, d)
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

// Logger never gets a parameter's value, only the names of the unit.
func (u *claimed) Logger() logrus.FieldLogger {
	return u.drain.logger().WithFields(logrus.Fields{"entry": u.ID, "transaction": u.TransactionID, "tries": u.Tries})
}
