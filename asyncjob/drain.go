package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/claim"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/txlog"
)

// A drain's first claim has this many units, or this many for each worker.
const (
	firstClaim     = 64
	firstPerWorker = 4
)

const (
	// lookEvery is how often the drain looks for due units while deliveries go on.
	lookEvery = time.Second
	// slowKept is the maximum number of waiting units in memory that failed before.
	slowKept = 64
	// walkRest times the duration of a walk is the rest before the next one.
	walkRest = 10
)

// drain is one round's work on one data source. It shares no state with other data sources,
// so that a slow one costs them nothing.
type drain struct {
	*shutdown
	job   *Job
	tally *tally
	name  string
	src   *source // nil: the data source is not among the targets
	// counts is for the operators' statistics of minutes.
	counts *journal.Tally

	// probing is held during a probe, so that connections that break together cause a single
	// failed probe.
	probing sync.Mutex

	// down is the reason why the data source became unreachable in this round.
	down cause
	// rested holds the ids of the units that were given back in this round. The round tries
	// no unit twice, however short its rest.
	rested sync.Map
	// blocked is the first reason for units to wait for an operator.
	blocked cause
	// noReceipts is the reason against all deliveries with a receipt; also for an operator.
	noReceipts cause
	delivered  atomic.Bool
	// again is set if this round does not serve the data source once more.
	again    bool
	failures failures
	// freed is set once others may have become due because a unit has left the log.
	freed atomic.Bool
}

// cause is the first error of several.
type cause struct{ first atomic.Pointer[error] }

// set reports whether err is the first.
func (c *cause) set(err error) bool { return c.first.CompareAndSwap(nil, &err) }

func (c *cause) get() error {
	if err := c.first.Load(); err != nil {
		return *err
	}
	return nil
}

func newDrain(s *shutdown, t *tally, name string) *drain {
	return &drain{
		shutdown: s, job: t.job, tally: t, name: name, src: t.job.sources[name],
		counts: t.job.control.journal.Tally(name),
	}
}

func (d *drain) note(change func(*DataSourceReport)) { d.tally.note(d.name, change) }

// notWritten makes the round end with an error after a failed write to the log. The leases
// of the units then run out.
func (d *drain) notWritten(what string, err error) {
	if !errors.Is(err, txlog.ErrLeaseLost) {
		d.tally.failed(&notWrittenError{fmt.Sprintf("asyncjob: data source %s: %s could not be written to the log: %s", d.name, what, dberr.DescribeLog(err)), err})
	}
}

// notWrittenError does not quote the log's database, whose error may contain values.
type notWrittenError struct {
	text string
	err  error
}

func (e *notWrittenError) Error() string { return e.text }
func (e *notWrittenError) Unwrap() error { return e.err }

func (d *drain) logger() logrus.FieldLogger { return d.job.log.WithField("data_source", d.name) }

// run delivers all due units, unless the data source is down.
func (d *drain) run() {
	d.note(func(*DataSourceReport) {}) // so that the report names it
	if d.src == nil {
		d.note(func(r *DataSourceReport) { r.Unknown = true })
		d.block(d.logger(), d.unknown(), d.unknown().Error())
	} else if d.probe() != nil {
		return
	}
	defer d.failures.sum(d.logger())
	err := d.claimAll()
	for err == nil && d.freed.Swap(false) && d.ctx.Err() == nil && d.down.get() == nil {
		err = d.claimAll()
	}
	if err != nil {
		d.tally.failed(fmt.Errorf("asyncjob: data source %s: claiming failed: %w", d.name, err))
	}
	if d.blocked.get() == nil && d.delivered.Load() && d.job.concerns.settled(d.name) {
		d.logger().Info("deliveries to the data source have recovered")
	}
}

// pause records whether operators have paused the data source.
func (d *drain) pause(paused bool) {
	key := d.name + "\x00paused" // deliveries do not settle it
	if !paused {
		if d.job.concerns.settled(key) {
			d.logger().Info("the data source is resumed")
		}
		return
	}
	d.note(func(r *DataSourceReport) { r.Paused = true })
	if d.job.concerns.raise(key, "paused") {
		d.logger().Warn("the data source is paused by an operator: nothing is delivered until it is resumed")
	}
}

// claimAll claims units and delivers them until there are no more. It makes the next claim
// during the last deliveries of the previous one.
func (d *drain) claimAll() error {
	removals := d.removals()
	defer removals.Close(context.Background())
	var work *queue
	work = newQueue(d.concurrency(), d.job.cfg.DeliveryBatch, func(units []*claimed) {
		began := time.Now()
		d.job.guard(func() { batch(units).deliver() })
		rest := time.Duration(0)
		if d.src != nil && slices.ContainsFunc(units, func(u *claimed) bool { return u.result.Kind == claim.Delivered }) {
			rest = d.src.pace.delivered(time.Since(began))
			work.widen(d.src.pace.inFlight())
		}
		for _, u := range units {
			u.was = u.result.Kind // its removal, beside others, may find that it is lost
			if u.was != claim.Delivered {
				u.end()
				continue
			}
			removals.Add(u.leaving())
		}
		if rest > 0 {
			jitter.Sleep(d.ctx, rest)
		}
	})
	defer work.idle()
	if d.src != nil {
		work.widen(d.src.pace.inFlight())
	}
	// A smaller first claim starts the workers earlier.
	most := min(d.job.cfg.TransactionLogFetchDataCount, max(firstClaim, firstPerWorker*d.concurrency()))
	var w walk
	for d.ctx.Err() == nil {
		limit, paused, err := d.allowed(most)
		if err != nil {
			return err
		}
		if d.pause(paused); limit == 0 {
			return nil
		}
		back := w.left && work.hasRoom(w.stuck)
		held, page, err := d.claim(limit, w.from(back), work, w.stuck)
		if err != nil {
			return err
		}
		work.add(held)
		// Of an unknown data source one batch is enough to report it.
		if d.src == nil {
			return nil
		}
		if w.saw(page, back); page.full {
			most = d.job.cfg.TransactionLogFetchDataCount
			// Slow units hold up the claim of others for at most lookEvery.
			if !work.until(lookEvery, func() bool { return work.waiting-work.slow(w.stuck) <= len(held)/2 }) {
				w.stuck = true
			}
		}
		if w.ended(work) || d.down.get() != nil || d.noReceipts.get() != nil {
			return nil
		}
	}
	return nil
}

// allowed bounds a claim by the operators' controls, and by the deliveries in flight while
// the data source is approached after an outage. 0 allows no claim.
func (d *drain) allowed(most int) (n int, paused bool, err error) {
	d.job.alive(d.ctx)
	if d.src != nil {
		most = d.src.pace.claim(most)
		if d.src.pace.asks() {
			d.job.control.others(d.ctx, d.name, &d.src.pace)
		}
	}
	return d.job.control.reserve(d.ctx, d.name, most)
}

// claim claims units after one, as work chooses. It does not end with ctx: a late answer
// would leave units claimed until their leases end.
func (d *drain) claim(limit int, after *entry.Unit, work *queue, stuck bool) (held []*claimed, p page, err error) {
	cfg := &d.job.cfg
	ctx, cancel := context.WithTimeout(d.flight, cfg.Lease)
	defer cancel()
	began := time.Now()
	units, err := d.job.storage.Claim(ctx, entry.ClaimRequest{
		DataSource: d.name, Limit: limit, MinAge: max(cfg.MaxDeliveryTryDelay, 0), Lease: cfg.Lease, After: after,
		Pick: func(due []*entry.Unit) (picked []*entry.Unit) {
			chosen, left := work.choose(slices.DeleteFunc(d.own(due), (*claimed).rested), stuck)
			for _, u := range chosen {
				picked = append(picked, u.Unit)
			}
			p = page{full: len(due) == limit, left: left}
			if last := due[len(due)-1]; len(chosen) < len(due) && !last.AtOnce {
				p.last = &entry.Unit{ID: last.ID, NextTry: last.NextTry}
			}
			return picked
		},
	})
	p.took = time.Since(began)
	if p.none = len(units) == 0; p.none || err != nil {
		return nil, p, err
	}
	d.note(func(r *DataSourceReport) { r.Claimed += len(units) })
	held = d.own(units)
	for _, u := range held {
		u.lease = d.job.leases.Keep(u.Unit)
	}
	return held, p, nil
}

// own wraps units for this drain.
func (d *drain) own(units []*entry.Unit) []*claimed {
	all := make([]*claimed, len(units))
	for i, u := range units {
		all[i] = &claimed{Unit: u, drain: d}
		if d.src != nil {
			all[i].kind = d.src.kindOf(u)
		}
	}
	return all
}

func (d *drain) concurrency() int {
	if d.src == nil {
		return 1
	}
	return d.src.concurrency
}

// probe checks whether the data source is writable. A failure marks it as down for the rest
// of the round, without further probes.
func (d *drain) probe() error {
	d.probing.Lock()
	defer d.probing.Unlock()
	if err := d.down.get(); err != nil {
		return err
	}
	ctx := d.ctx
	if ctx.Err() != nil {
		ctx = d.flight // a delivery that is ending still needs to know
	}
	err := d.src.probe(ctx, d.job.cfg.ProbeTimeout)
	if err == nil {
		d.src.reached()
		d.job.control.see(ctx, d.name, nil)
		return nil
	}
	if ctx.Err() == nil { // else it was the round that ended, which says nothing of the data source
		d.wentDown(err)
	}
	return err
}

func (d *drain) wentDown(err error) {
	if d.down.set(err) {
		d.src.unreachable(err)
		d.job.control.see(d.writes, d.name, err)
		d.note(func(r *DataSourceReport) { r.Unreachable = err })
	}
}

// try makes one attempt within Config.DeliveryTimeout.
func (d *drain) try(u *entry.Unit, run attempt.Runner) try {
	ctx, cancel := context.WithTimeout(d.flight, d.job.cfg.DeliveryTimeout)
	defer cancel()
	begun := time.Now()
	a := d.src.deliver(ctx, u, run)
	a.late, a.took = dberr.TimedOut(d.flight, ctx), time.Since(begun)
	return a
}

func (d *drain) unknown() error {
	return fmt.Errorf("data source %s is not among the job's targets: configure it", d.name)
}

// block reports the reason for units to wait for an operator, and warns of each cause once.
// said is the text for a log line.
func (d *drain) block(log logrus.FieldLogger, why error, said string) {
	if d.blocked.set(why) {
		d.note(func(r *DataSourceReport) { r.Blocked = why })
	}
	if d.job.concerns.raise(d.name, said) {
		log.Warnf("the log holds units that cannot be delivered until an operator acts; they wait, no try is counted: %s", said)
	}
}
