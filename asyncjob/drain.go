package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/txlog"
)

// A drain first claims so many units, and so many for each worker.
const (
	firstClaim     = 64
	firstPerWorker = 4
)

// drain is one round's work on one data source. It shares nothing with those
// of other data sources, so that a slow one costs them nothing.
type drain struct {
	*shutdown
	job   *Job
	tally *tally
	name  string
	src   *source // nil: the data source is not among the targets
	// counts is for what operators are told of minutes.
	counts *journal.Tally

	// probing is held during a probe, so that connections that break together
	// make one probe fail and not many.
	probing sync.Mutex

	mu sync.Mutex
	// down is why the data source became unreachable in this round.
	down error
	// rested are the units that were given back in this round.
	rested map[string]bool
	// blocked is the first reason for which units wait for an operator.
	blocked error
	// noReceipts is why none can be delivered that leaves a receipt; for an operator too.
	noReceipts error
	delivered  bool
}

func newDrain(s *shutdown, t *tally, name string) *drain {
	return &drain{
		shutdown: s, job: t.job, tally: t, name: name, src: t.job.sources[name], rested: map[string]bool{},
		counts: t.job.control.journal.Tally(name),
	}
}

func (d *drain) note(change func(*DataSourceReport)) { d.tally.note(d.name, change) }

// notWritten has the round end with an error: the log did not take what the job
// had to say, and the leases of the units are left to run out.
func (d *drain) notWritten(what string, err error) {
	if !errors.Is(err, txlog.ErrLeaseLost) {
		d.tally.failed(&notWrittenError{fmt.Sprintf("asyncjob: data source %s: %s could not be written to the log: %s", d.name, what, dberr.DescribeLog(err)), err})
	}
}

// notWrittenError does not quote what the log's database said, which may hold
// values.
type notWrittenError struct {
	text string
	err  error
}

func (e *notWrittenError) Error() string { return e.text }
func (e *notWrittenError) Unwrap() error { return e.err }

func (d *drain) logger() logrus.FieldLogger { return d.job.log.WithField("data_source", d.name) }

// run delivers what is due, unless the data source is down.
func (d *drain) run() {
	d.note(func(*DataSourceReport) {}) // so that the report names it
	if d.paused() {
		return
	}
	if d.src == nil {
		d.note(func(r *DataSourceReport) { r.Unknown = true })
		d.block(d.logger(), errUnknown, errUnknown.Error())
	} else if d.probe() != nil {
		return
	}
	if err := d.claimAll(); err != nil {
		d.tally.failed(fmt.Errorf("asyncjob: data source %s: claiming failed: %w", d.name, err))
	}
	if d.blocked == nil && d.delivered && d.job.concerns.settled(d.name) {
		d.logger().Info("what kept units of the data source from being delivered is mended")
	}
}

// paused reports whether operators have paused the data source, or whether that
// cannot be found out.
func (d *drain) paused() bool {
	paused, err := d.job.control.paused(d.ctx, d.name)
	switch {
	case err != nil:
		d.tally.failed(fmt.Errorf("asyncjob: data source %s: whether it is paused cannot be read: %w", d.name, err))
		return true
	case paused:
		d.pause()
	case d.job.concerns.settled(d.name + pausedKey):
		d.logger().Info("the data source is resumed")
	}
	return paused
}

// pausedKey tells what is said of a pause from what is said of deliveries.
const pausedKey = "\x00paused"

func (d *drain) pause() {
	d.note(func(r *DataSourceReport) { r.Paused = true })
	if d.job.concerns.raise(d.name+pausedKey, "paused") {
		d.logger().Warn("the data source is paused by an operator: nothing is delivered until it is resumed")
	}
}

// claimAll claims units and has them delivered until there are no more. The
// next are claimed while the last of those before are being delivered.
func (d *drain) claimAll() error {
	removals := d.removals()
	defer removals.Close(context.Background())
	var work *queue
	work = newQueue(d.concurrency(), d.job.cfg.DeliveryBatch, func(units []*claimed) {
		began := time.Now()
		d.job.guard(func() { batch(units).deliver() })
		rest := time.Duration(0)
		if d.src != nil && slices.ContainsFunc(units, func(u *claimed) bool { return u.result.kind == delivered }) {
			if now := time.Now(); len(units) == 1 {
				rest = d.src.pace.delivered(now.Sub(began), now)
			}
			work.widen(d.src.goesWell())
		}
		for _, u := range units {
			if u.result.kind != delivered {
				u.end()
				continue
			}
			removals.Behind(d.writes, u.leaving())
		}
		if rest > 0 {
			jitter.Sleep(d.ctx, rest)
		}
	})
	defer work.idle()
	if d.src != nil {
		work.widen(d.src.inFlight())
	}
	// The workers need not wait for the first to be many.
	most := min(d.job.cfg.TransactionLogFetchDataCount, max(firstClaim, firstPerWorker*d.concurrency()))
	for d.ctx.Err() == nil {
		limit, paused, err := d.allowed(most)
		if err != nil || limit == 0 {
			if paused {
				d.pause()
			}
			return err
		}
		units, err := d.claim(limit)
		if err != nil {
			return err
		}
		held, fresh := d.hold(units)
		work.add(held)
		// Of an unknown data source one batch is enough to show that it is there.
		if len(units) < limit || !fresh || d.src == nil {
			return nil
		}
		most = d.job.cfg.TransactionLogFetchDataCount
		work.shrunk(len(units) / 2)
		if d.outage() != nil || d.withoutReceipts() != nil {
			return nil
		}
	}
	return nil
}

// allowed bounds a claim by what operators have set, and by what is in flight while
// a data source is approached after an outage. 0: nothing may be claimed.
func (d *drain) allowed(most int) (n int, paused bool, err error) {
	d.job.beat(d.ctx, nil)
	if d.src != nil {
		if some := d.src.approach(); some < d.src.concurrency {
			most = min(most, firstPerWorker*some)
		}
		writing, jobs := d.job.control.others(d.ctx, d.name)
		d.src.pace.share(writing, jobs, time.Now())
	}
	return d.job.control.reserve(d.ctx, d.name, most)
}

// claim does not end with ctx: an answer that came too late would leave units
// claimed that nobody knows of until their leases end.
func (d *drain) claim(limit int) ([]*txlog.Unit, error) {
	cfg := &d.job.cfg
	ctx, cancel := context.WithTimeout(d.flight, cfg.Lease)
	defer cancel()
	return d.job.storage.Claim(ctx, txlog.ClaimRequest{
		DataSource: d.name, Limit: limit, MinAge: cfg.minAge(), Lease: cfg.Lease,
	})
}

// hold keeps the leases of what was claimed. It reports whether there is any
// that was not given back in this round before: what rests for a very short
// time may come back.
func (d *drain) hold(units []*txlog.Unit) (held []*claimed, fresh bool) {
	if len(units) == 0 {
		return nil, false
	}
	d.note(func(r *DataSourceReport) { r.Claimed += len(units) })
	held = make([]*claimed, len(units))
	for i, u := range units {
		held[i] = &claimed{Unit: u, drain: d, lease: d.job.leases.Keep(u)}
		fresh = fresh || !d.met(u)
	}
	return held, fresh
}

func (d *drain) concurrency() int {
	if d.src == nil {
		return 1
	}
	return d.src.concurrency
}

func (d *drain) outage() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.down
}

// probe finds out whether the data source can be written to and marks it for
// the rest of the round if it cannot. Once marked it is not probed again.
func (d *drain) probe() error {
	d.probing.Lock()
	defer d.probing.Unlock()
	if err := d.outage(); err != nil {
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
	d.mu.Lock()
	first := d.down == nil
	if first {
		d.down = err
	}
	d.mu.Unlock()
	if first {
		d.src.unreachable(err)
		d.job.control.see(d.writes, d.name, err)
		d.note(func(r *DataSourceReport) { r.Unreachable = err })
	}
}

func (d *drain) markDelivered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delivered = true
}

// rest remembers that a unit was given back, met tells whether it was: what
// rests for a very short time may come back in the same round.
func (d *drain) rest(u *txlog.Unit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rested[u.ID] = true
}

func (d *drain) met(u *txlog.Unit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rested[u.ID]
}

var errUnknown = errors.New("the data source is not among the job's targets: configure it")

// block reports why units wait for an operator, and warns of each cause once.
// said is what a log line may tell of it.
func (d *drain) block(log logrus.FieldLogger, cause error, said string) {
	d.mu.Lock()
	first := d.blocked == nil
	if first {
		d.blocked = cause
	}
	d.mu.Unlock()
	if first {
		d.note(func(r *DataSourceReport) { r.Blocked = cause })
	}
	if d.job.concerns.raise(d.name, said) {
		log.Warnf("the log holds units that cannot be delivered until an operator acts; they wait, no try is counted: %s", said)
	}
}

// withoutReceipts is why units that leave receipts cannot be delivered.
func (d *drain) withoutReceipts() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.noReceipts
}

func (d *drain) lackReceipts(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noReceipts = err
}
