package asyncjob

import (
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/txlog"
)

// A round first claims so many units, and so many for each worker.
const (
	firstClaim     = 64
	firstPerWorker = 4
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
	// holds end the renewals of what is claimed.
	holds map[*txlog.Unit]func()
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

// drain claims units and has them delivered until there are no more. The next
// are claimed while the last of those before are being delivered.
func (v *visit) drain() error {
	removals := newRemovals(v, v.concurrency())
	defer removals.close()
	work := newQueue(v.concurrency(), v.together(), func(units []*txlog.Unit) {
		ends := make([]result, len(units)) // lost, should it panic
		v.round.job.guard(func() { v.units(units, ends) })
		for i, u := range units {
			if ends[i].kind != delivered {
				v.end(u, ends[i])
				continue
			}
			removals.add(&removal{unit: u, end: ends[i], erase: erasable(u, ends[i].found)})
		}
	})
	defer work.idle()
	most := v.round.job.cfg.TransactionLogFetchDataCount
	// The workers need not wait for the first to be many.
	limit := min(most, max(firstClaim, firstPerWorker*v.concurrency()))
	for v.round.ctx.Err() == nil {
		units, err := v.claim(limit)
		if err != nil {
			return err
		}
		fresh := v.begin(units)
		work.add(units)
		// Of an unknown data source one batch is enough to show that it is there.
		if len(units) < limit || !fresh || v.src == nil {
			return nil
		}
		limit = most
		work.shrunk(len(units) / 2)
		if v.outage() != nil {
			return nil
		}
	}
	return nil
}

// begin holds what was claimed. It reports whether there is any that was not
// given back in this round before: what rests for a very short time may come
// back.
func (v *visit) begin(units []*txlog.Unit) (fresh bool) {
	if len(units) == 0 {
		return false
	}
	v.note(func(r *DataSourceReport) { r.Claimed += len(units) })
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, u := range units {
		v.holds[u] = v.round.job.keeper.Hold(u)
		fresh = fresh || !v.rested[u.ID]
	}
	return fresh
}

// end ends the work on a unit.
func (v *visit) end(u *txlog.Unit, end result) {
	v.mu.Lock()
	release := v.holds[u]
	delete(v.holds, u)
	v.mu.Unlock()
	release()
	v.note(end.count)
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

func (v *visit) concurrency() int {
	if v.src == nil {
		return 1
	}
	return v.src.concurrency
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
