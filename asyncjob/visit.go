package asyncjob

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/txlog"
)

// visit is one round's work on one data source.
type visit struct {
	round *round
	name  string
	src   *source // nil: the data source is not among the targets

	// probing is held during a probe, so that connections that break together
	// make one probe fail and not many.
	probing sync.Mutex

	mu sync.Mutex
	// down is why the data source became unreachable in this round.
	down error
	// rested are the units that were given back in this round.
	rested map[string]bool
	// fresh: the batch has units that were not given back in this round before.
	fresh bool
	// erasable are the receipts that no attempt can need any more.
	erasable []string
	// warned: units with other settings were warned of.
	warned bool
}

func (v *visit) note(change func(*DataSourceReport)) { v.round.note(v.name, change) }

func (v *visit) logger() logrus.FieldLogger {
	return v.round.job.log.WithField("data_source", v.name)
}

// open reports whether there is any point in claiming.
func (v *visit) open() bool {
	if v.src == nil {
		v.note(func(r *DataSourceReport) { r.Unknown = true })
		v.logger().Warn("the log holds units of a data source that is not among the job's targets; " +
			"they wait until it is configured, no try is counted")
		return true
	}
	return v.probe() == nil
}

// finished reports whether the round should leave the data source alone from
// here on, although there is more to claim.
func (v *visit) finished() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	// Of an unknown data source one batch is enough to show that it is there.
	return v.src == nil || v.down != nil || !v.fresh
}

func (v *visit) outage() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.down
}

// probe finds out whether the data source can be reached and marks it for the
// rest of the round if it cannot. Once marked it is not probed again.
func (v *visit) probe() error {
	v.probing.Lock()
	defer v.probing.Unlock()
	if err := v.outage(); err != nil {
		return err
	}
	ctx := v.round.ctx
	if ctx.Err() != nil {
		ctx = v.round.flight // a delivery that is ending still needs to know
	}
	err := v.src.probe(ctx, v.round.job.cfg.ProbeTimeout)
	if err == nil {
		v.src.reached()
		return nil
	}
	if ctx.Err() != nil {
		return err // it was the round that ended, which says nothing of the data source
	}
	v.mu.Lock()
	v.down = err
	v.mu.Unlock()
	v.src.unreachable(err)
	v.note(func(r *DataSourceReport) { r.Unreachable = err })
	return err
}

// batch works on units that were claimed together and returns when nothing of
// them is left to do.
func (v *visit) batch(units []*txlog.Unit) {
	if len(units) == 0 {
		return
	}
	v.note(func(r *DataSourceReport) { r.Claimed += len(units) })
	v.mu.Lock()
	v.fresh = false
	v.mu.Unlock()
	release := make(map[string]func(), len(units))
	for _, u := range units {
		release[u.ID] = v.round.job.keeper.Hold(u)
	}
	workers := new(errgroup.Group)
	workers.SetLimit(v.concurrency())
	for _, group := range byTransaction(units) {
		workers.Go(func() error {
			for _, u := range group {
				end := result{kind: lost}
				v.round.job.guard(func() { end = v.unit(u) })
				release[u.ID]()
				v.note(end.count)
			}
			return nil
		})
	}
	_ = workers.Wait()
	v.mu.Lock()
	ids := v.erasable
	v.erasable = nil
	v.mu.Unlock()
	if v.src != nil {
		v.src.erase(v.round.flight, v.round.job.cfg.ProbeTimeout, ids)
	}
}

func (v *visit) concurrency() int {
	if v.src == nil {
		return 1
	}
	return v.src.concurrency
}

// byTransaction groups units by their transaction: the groups in the order in
// which they were claimed, the units of each by age.
func byTransaction(units []*txlog.Unit) [][]*txlog.Unit {
	var groups [][]*txlog.Unit
	place := make(map[string]int, len(units))
	for _, u := range units {
		i, ok := place[u.TransactionID]
		if !ok || u.TransactionID == "" { // an unreadable unit may have none
			i = len(groups)
			place[u.TransactionID] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], u)
	}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b *txlog.Unit) int { return cmp.Compare(a.ID, b.ID) })
	}
	return groups
}

// rest remembers that a unit was given back, met tells whether it was: what
// rests for a very short time may come back in the same round.
func (v *visit) rest(u *txlog.Unit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rested[u.ID] = true
}

func (v *visit) met(u *txlog.Unit) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.rested[u.ID] {
		v.fresh = true
	}
	return v.rested[u.ID]
}

// warnOnce reports whether this is the first unit of the round with other
// settings: a wrong DSN makes all of them so.
func (v *visit) warnOnce() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	first := !v.warned
	v.warned = true
	return first
}

// settingsDiffer is the error of a unit that would mean something else where
// the job would run it.
func settingsDiffer(u *txlog.Unit, s *source) error {
	return fmt.Errorf("not delivered: the log was written with the settings %q, but the job's DSN of data source %s has %q; "+
		"give the job a DSN with the same settings", u.Settings, s.name, s.target.Settings)
}
