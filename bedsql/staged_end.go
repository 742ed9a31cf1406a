package bedsql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/order"
)

// stagedUnit is the part of a group for one data source, or one message.
type stagedUnit struct {
	besteffort.InFlight
	again

	c      *connector
	writes []*stagedWrite
	unit   entry.Unit
	// keyed is the unit's write under its key; nil without a key.
	keyed *keyed.Write
	// behind is why it is left to the job: a part of its group, or a message before it, is
	// pending.
	behind   error
	err      error
	panicked any
}

func inFlight(units []*stagedUnit) (ds []*besteffort.InFlight) {
	for _, u := range units {
		ds = append(ds, &u.InFlight)
	}
	return ds
}

// finishStaged writes all entries in one step and delivers them to their data sources side by
// side. It returns End's report, and the value of a driver's panic.
func (s *SoftTransaction) finishStaged(ctx context.Context) (problems []error, panicked any) {
	if s.home != nil {
		return s.home.finish(ctx)
	}
	units, err := s.stagedUnits()
	var back *stagedUnit
	if err == nil {
		await(units)
		back, err = stagedCompensation(ctx, s, units)
	}
	if err != nil {
		drop(s.staged.writes, err)
		return []error{err}, nil
	}
	if len(units) == 0 {
		return nil, nil
	}
	ds := inFlight(units)
	if back != nil {
		ds = append(ds, &back.InFlight)
	}
	if errs := order.Log(ctx, units[0].c.deliverer, ds...); errs != nil {
		errs = errs[:len(units)]
		for i, u := range units {
			u.c.cfg.Counters.failed(errs[i])
			u.answer(errs[i])
		}
		return errs, nil
	}
	problems, _, panicked = s.deliver(ctx, units, back, group.Group{})
	return problems, panicked
}

// deliver delivers units with entries in the log side by side, as a group with the compensation
// back if that is not nil. It returns what finishStaged returns; whole means that the errors
// concern all of such a group. settled are the units of the group settled by others.
func (s *SoftTransaction) deliver(ctx context.Context, units []*stagedUnit, back *stagedUnit, g group.Group, settled ...*stagedUnit) (problems []error, whole bool, panicked any) {
	s.run(ctx, units, back != nil, settled)
	var err error
	if back != nil {
		g.Deliverer, g.Storage, g.Compensation = back.c.deliverer, back.c.cfg.Storage, &back.InFlight
		g.Undo = func(ctx context.Context, part *entry.Unit) attempt.Outcome { return onPart(ctx, s, part, attempt.Undo) }
		g.Look = func(ctx context.Context, part *entry.Unit) attempt.Outcome { return onPart(ctx, s, part, lookAtPart) }
		g.Parts = inFlight(units)
		whole, err = g.End(ctx)
	}
	for _, u := range units {
		if whole && u.panicked == nil {
			u.err = err
		}
		switch {
		case u.panicked != nil:
			panicked = u.panicked
			problems = append(problems, u.err)
		case u.err != nil:
			u.c.cfg.Counters.failed(u.c.keys.Refused(u.err))
			problems = append(problems, u.err)
		default:
			u.c.cfg.Counters.Delivered.Add(1)
			if whole || u.Ending != besteffort.HoldSettled { // else it may be undone yet
				s.arrive(u.c.target.DataSource)
			}
		}
		u.answer(u.err)
	}
	if whole && err != nil {
		problems = []error{err}
		s.mu.Lock()
		s.arrived = nil
		s.mu.Unlock()
	}
	for _, name := range g.Kept {
		s.arrive(name)
	}
	return problems, whole, panicked
}

// stagedUnits makes one unit for each data source and one for each message, in the order
// of their first writes.
func (s *SoftTransaction) stagedUnits() ([]*stagedUnit, error) {
	if err := s.ctx.Err(); err != nil && s.home == nil {
		return nil, s.discarded(err)
	}
	var units []*stagedUnit
	for _, w := range s.staged.writes {
		if w.undo {
			continue
		}
		i := slices.IndexFunc(units, func(u *stagedUnit) bool {
			return u.c.target.DataSource == w.c.target.DataSource && w.c.isSQL
		})
		if i < 0 {
			i = len(units)
			units = append(units, &stagedUnit{c: w.c})
		}
		units[i].writes = append(units[i].writes, w)
	}
	for _, u := range units {
		statements := make([]entry.Statement, len(u.writes))
		receipt := false
		for i, w := range u.writes {
			statements[i] = w.statement
			receipt = receipt || w.receipt
			u.unit.Order = order.With(u.unit.Order, w.order)
		}
		u.unit.Statements = statements
		withKey := s.key != nil && u.c.isSQL
		if s.home != nil {
			u.keyed = s.home.keys[u.c.target.DataSource]
			withKey = u.keyed != nil
		}
		if err := u.open(s, u.writes[0], withKey, receipt); err != nil {
			for _, other := range units {
				other.keyed.Back()
			}
			return nil, err
		}
	}
	return units, nil
}

// open makes the unit, whose first write is w, ready to be logged, withKey under the transaction's
// key.
func (u *stagedUnit) open(s *SoftTransaction, w *stagedWrite, withKey, receipt bool) (err error) {
	u.InFlight = u.c.inFlight(scope{soft: s, withLogging: true, logging: LogBefore, features: features{id: w.id}}, withKey || receipt, &u.unit, nil, u)
	u.unit.Session = cmp.Or(w.session, u.unit.Session)
	u.Ending, u.again = besteffort.ParkRefused, again{u.c, u.c, &u.unit}
	u.unit.TraceParent = w.trace
	if w.called != nil {
		u.keyed = w.called
	}
	if withKey && u.keyed == nil {
		u.keyed, err = s.key.Take(u.c.keys)
	}
	u.keyed.Mark(&u.unit)
	return err
}

func (u *stagedUnit) First(ctx context.Context) attempt.Outcome {
	if u.behind != nil {
		return attempt.Outcome{Class: dialect.Unreachable, Err: u.behind}
	}
	return u.c.onPool(ctx, false, func(conn driver.Conn) attempt.Outcome {
		if s, ok := conn.(*attempt.Session); ok && s.Facts.Session != u.unit.Session && !u.c.target.Named {
			u.unit.Session = "" // another's, and nothing was sent in it
		}
		return u.c.run(ctx, conn, &u.unit, attempt.Replay)
	})
}

// submit has the unit delivered. It waits for the unit's turn for at most wait. A driver's panic is
// for End to pass on once the other units are through; the job takes the unit over when its lease
// has run out.
func (u *stagedUnit) submit(ctx context.Context, wait time.Duration) {
	defer func() {
		if u.panicked = recover(); u.panicked != nil {
			u.err = u.Panicked(u.panicked)
		}
	}()
	u.err = order.Turn{Deliverer: u.c.deliverer, Wait: wait}.DeliverLogged(ctx, &u.InFlight)
}

// answer sets the outcome of the Results that Exec returned.
func (u *stagedUnit) answer(err error) {
	u.err = err
	if !errors.Is(err, ErrNotCommitted) {
		u.keyed.Settle(&u.Outcome, err)
	}
	for i, w := range u.writes {
		switch {
		case err != nil:
			w.set(noResult{err})
		case i < len(u.Outcome.Results):
			w.set(u.Outcome.Results[i])
		default:
			w.set(noResult{ErrRowsUnknown})
		}
	}
}

// status returns the state of u in the log.
func (u *stagedUnit) status(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, u.c.cfg.LogTimeout)
	defer cancel()
	return Status(ctx, u.c.cfg.Storage, u.unit.ID)
}

// applied reports whether the receipt of u proves that it was applied.
func (u *stagedUnit) applied(ctx context.Context) (bool, error) {
	if u.unit.Receipt == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, u.c.cfg.LogTimeout)
	defer cancel()
	out := u.c.onPool(ctx, true, func(conn driver.Conn) attempt.Outcome {
		out, err := attempt.Look(ctx, u.c.dialect, conn, &u.unit, u.c.receipts)
		if err != nil && !attempt.NoReceipts(u.c.dialect, u.c.receipts, err) {
			return attempt.Failed(u.c.dialect, err, true)
		}
		return out
	})
	return out.Found, out.Err
}
