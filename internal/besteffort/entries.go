package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// entries are what is said to the log of the units that are delivered: it writes
// their entries, and gives them up or removes them.
type entries struct {
	cfg      *Config
	reports  *reports
	leases   *lease.Renewer
	removals *removal.Queue
}

func newEntries(cfg *Config, r *reports) *entries {
	e := &entries{cfg: cfg, reports: r, leases: lease.NewRenewer(cfg.Storage, cfg.Lease)}
	e.removals = removal.New(context.Background(), removal.Config{
		Storage: cfg.Storage, Timeout: cfg.LogTimeout,
		Pause:  func() *backoff.ExponentialBackOff { return cfg.pause(time.Second) },
		Failed: e.notRemoved, Erase: cfg.Erase, EraseInTurn: cfg.EraseInTurn,
	})
	return e
}

// add writes the entries of several units in one durable step, before they are run. errs are as for
// Deliverer.Log.
func (e *entries) add(ctx context.Context, ds ...*Delivery) (errs []error) {
	each := func(why func(*Delivery) error) []error {
		for _, d := range ds {
			errs = append(errs, why(d))
		}
		return errs
	}
	units := ds[0].alone[:]
	if len(ds) > 1 {
		units = make([]*txlog.Unit, len(ds))
	}
	for i, d := range ds {
		units[i], d.logged = d.Unit, true
		d.unwritten = errNoAnswer // if the storage panics
		d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	}
	begun := time.Now()
	err := e.cfg.Storage.Add(ctx, e.cfg.Lease, units...)
	for _, d := range ds {
		d.logTook, d.unwritten = time.Since(begun), err
	}
	switch {
	case err == nil:
		for _, d := range ds {
			d.lease = e.leases.Keep(d.Unit)
			// The entry may come back after its removal, as if an attempt were
			// still on its way: what is said of the unit then, its receipt decides.
			d.inDoubt = d.Unit.AddRepeated && d.Unit.Receipt != ""
		}
		if ds[0].lease.Lost() {
			// This process stood still for longer than the lease.
			return each(func(d *Delivery) error { d.lease.Release(); return pending(d, txlog.ErrLeaseLost) })
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If it was written, its lease runs out and the job delivers it.
		return each(func(d *Delivery) error { return pending(d, err) })
	case e.cfg.RunUnlogged && ctx.Err() == nil && len(ds) == 1:
		e.reports.logger(ds[0].Unit).WithField("error", dberr.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		ds[0].unlogged = true
		return nil
	default:
		return each(func(d *Delivery) error {
			return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: err}
		})
	}
}

// adding is the write of an entry while its unit is being run. It shares the
// unit with the delivery, and nothing else: the caller may be gone before it ends.
type adding struct {
	done  chan struct{}
	alone [1]*txlog.Unit
	added
	panicked any
}

// added is what became of the write of an entry.
type added struct {
	err   error
	lease *lease.Kept
	took  time.Duration
}

// addBeside begins to write an entry beside the write.
func (e *entries) addBeside(ctx context.Context, d *Delivery) *adding {
	d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	a := &adding{done: make(chan struct{}), alone: [1]*txlog.Unit{d.Unit}}
	go func() {
		defer close(a.done)
		defer func() { a.panicked = recover() }()
		a.added = e.addAlone(ctx, a.alone[:])
	}()
	return a
}

// addAlone writes the entry of the one unit on a context of its own: the caller's
// may end, and what was sent must be logged all the same.
func (e *entries) addAlone(ctx context.Context, alone []*txlog.Unit) (a added) {
	ctx, cancel := e.cfg.own(ctx)
	defer cancel()
	begun := time.Now()
	a.err = e.cfg.Storage.Add(ctx, e.cfg.Lease, alone...)
	a.took = time.Since(begun)
	switch {
	case a.err == nil:
		a.lease = e.leases.Keep(alone[0])
	case errors.Is(a.err, txlog.ErrInDoubt):
		// If it was written, or comes late: others' share of its INSERT is repeated
		// while the lease would last that began when it left.
		alone[0].Lease.Deadline = time.Now().Add(e.cfg.Lease)
	}
	return a
}

// addSent brings the entry of a unit that was sent to an end: it waits for what
// was begun alongside, or writes it now. The error is that of the log.
func (e *entries) addSent(ctx context.Context, d *Delivery, beside *adding) error {
	d.unwritten = errNoAnswer // if the storage panics
	var a added
	if beside != nil {
		<-beside.done
		if beside.panicked != nil {
			panic(beside.panicked)
		}
		a = beside.added
	} else {
		d.alone[0] = d.Unit
		a = e.addAlone(ctx, d.alone[:])
	}
	d.logged, d.lease, d.unwritten, d.logTook = true, a.lease, a.err, a.took
	// See add: it may come back.
	d.inDoubt = d.inDoubt || d.unwritten == nil && d.Unit.AddRepeated && d.Unit.Receipt != ""
	return d.unwritten
}

var errNoAnswer = fmt.Errorf("%w: it gave no answer", txlog.ErrInDoubt)

// release gives the unit up with a verdict, on a context of its own: the
// caller's may be the reason for it. When that fails the lease runs out, and
// the job takes the unit as one in doubt.
func (e *entries) release(ctx context.Context, d *Delivery, v txlog.Verdict) error {
	ctx, cancel := e.cfg.own(ctx)
	defer cancel()
	d.lease.Refresh()
	v.Attempts = d.failed
	err := e.cfg.Storage.Release(ctx, d.Unit, v)
	if err != nil {
		e.reports.warn(d.Unit, dberr.DescribeLog(err), "bed: the log did not confirm that the entry was handed over; if it was not, the job takes it when its lease has run out")
	}
	return err
}

// outgoing is the unit as it leaves the log.
func outgoing(d *Delivery) *removal.Unit {
	d.removal = removal.Unit{Entry: d.Unit, Lease: d.lease, Certain: !d.inDoubt && !d.Outcome.Found}
	return &d.removal
}

// delivered ends a delivered unit.
func (e *entries) delivered(ctx context.Context, d *Delivery) {
	if d.Outcome.Found {
		e.reports.found(d)
	}
	if u := outgoing(d); d.Behind {
		e.removals.Behind(ctx, u)
	} else {
		e.removals.Now(ctx, u)
	}
}

// deliveredUnlogged ends a delivered unit that has no entry.
func (e *entries) deliveredUnlogged(d *Delivery) {
	if d.Outcome.Found {
		e.reports.found(d)
	}
	e.removals.End(outgoing(d))
}

// deliveredInDoubt ends a delivered unit of which it is not known whether its entry
// was written.
func (e *entries) deliveredInDoubt(d *Delivery) {
	e.removals.Chase(outgoing(d), func() {
		e.reports.warn(d.Unit, nil, "bed: the write is delivered, and it is not known whether its entry was written; if it was, the job will find it and "+jobWill(d.Unit))
	})
}

// notRemoved tells of delivered units whose entries could not be removed.
func (e *entries) notRemoved(units []*removal.Unit, err error, repeated bool) {
	for _, u := range units {
		if repeated {
			e.reports.warn(u.Entry, err, "bed: the write is delivered, its entry could not be removed yet; the removal is repeated")
		} else {
			e.reports.warn(u.Entry, nil, "bed: the write is delivered, its entry could not be removed; the job will find it and "+jobWill(u.Entry))
		}
	}
}

// jobWill is what the job will do with a delivered unit that it finds.
func jobWill(u *txlog.Unit) string {
	if u.Receipt != "" {
		return "see by its receipt that nothing is left to do"
	}
	return "may deliver it again"
}
