package asyncjob

import (
	"context"
	"errors"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// together is how many units may be delivered in one local transaction.
// Listeners are told of each attempt, so that each has to be one of its own.
func (v *visit) together() int {
	if v.round.job.cfg.Bus.Listening() {
		return 1
	}
	return v.round.job.cfg.DeliveryBatch
}

// units works on units of different transactions and says what became of each.
func (v *visit) units(units []*txlog.Unit, ends []result) {
	ended := make([]bool, len(units))
	var joined []int
	for i, u := range units {
		if len(units) > 1 && v.joins(u) && (joined == nil || sameSettings(units[joined[0]], u)) {
			joined = append(joined, i)
		}
	}
	if len(joined) > 1 {
		v.join(units, joined, ends, ended)
	}
	for i, u := range units {
		if !ended[i] {
			v.round.job.guard(func() { ends[i] = v.unit(u) })
		}
	}
}

// joins reports whether there is nothing special about u: it is to be delivered
// now, and its outcome does not depend on a receipt or an earlier attempt.
func (v *visit) joins(u *txlog.Unit) bool {
	return v.src != nil && v.round.ctx.Err() == nil && v.outage() == nil && !v.round.job.keeper.Lost(u) && !v.met(u) &&
		u.Unreadable == nil && u.NotReplayable == "" && u.Receipt == "" && !u.InDoubt && v.src.accepts(u) == nil
}

// sameSettings reports whether two units are delivered in the same session.
func sameSettings(a, b *txlog.Unit) bool {
	return a.Settings == b.Settings && a.SettingsOlder == b.SettingsOlder
}

// join delivers units in one local transaction. Should any of them fail it is
// rolled back, and each is left to an attempt of its own. Only if COMMIT is not
// answered all of them are in doubt.
func (v *visit) join(units []*txlog.Unit, joined []int, ends []result, ended []bool) {
	first := units[joined[0]]
	whole := &txlog.Unit{ID: first.ID, Settings: first.Settings, SettingsOlder: first.SettingsOlder}
	for _, i := range joined {
		whole.Statements = append(whole.Statements, units[i].Statements...)
	}
	ctx, cancel := context.WithTimeout(v.round.flight, v.round.job.cfg.DeliveryTimeout)
	a := v.src.deliver(ctx, whole)
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	cancel()
	if !a.Delivered() && !a.Maybe() {
		return
	}
	if a.Delivered() {
		a.Outcome = delivery.Outcome{}
	}
	for _, i := range joined {
		ended[i] = true
		v.round.job.guard(func() { ends[i] = v.judge(units[i], a, late) })
	}
}
