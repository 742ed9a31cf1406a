package bedsql

import (
	"context"
	"database/sql/driver"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/txlog"
)

// stagedUnit is the part of a group for one data source.
type stagedUnit struct {
	besteffort.InFlight

	c      *connector
	writes []*stagedWrite
	unit   txlog.Unit
	// back is IdempotencyKey.receipt's; nil without a key.
	back     func()
	err      error
	panicked any
}

// finishStaged writes all entries in one step and delivers them to their data
// sources side by side. It gives what End reports, and the value of a driver's
// panic.
func (s *SoftTransaction) finishStaged(ctx context.Context) (problems []error, panicked any) {
	if s.home != nil {
		return s.home.finish(ctx)
	}
	units, err := s.stagedUnits()
	if err != nil {
		drop(s.staged.writes, err)
		return []error{err}, nil
	}
	if len(units) == 0 {
		return nil, nil
	}
	ds := make([]*besteffort.InFlight, len(units))
	for i, u := range units {
		ds[i] = &u.InFlight
	}
	if errs := units[0].c.deliverer.Log(ctx, ds...); errs != nil {
		for i, u := range units {
			u.c.cfg.Counters.failed(errs[i])
			u.answer(errs[i])
		}
		return errs, nil
	}
	return s.deliver(ctx, units)
}

// deliver delivers units whose entries are in the log side by side. What it gives is
// finishStaged's.
func (s *SoftTransaction) deliver(ctx context.Context, units []*stagedUnit) (problems []error, panicked any) {
	if len(units) == 0 {
		return nil, nil
	}
	var all sync.WaitGroup
	for _, u := range units[1:] {
		all.Go(func() { u.submit(ctx) })
	}
	units[0].submit(ctx)
	all.Wait()
	for _, u := range units {
		if u.err != nil {
			problems = append(problems, u.err)
		} else if u.panicked == nil {
			s.arrive(u.c.target.DataSource)
		}
		if u.panicked != nil {
			panicked = u.panicked
		}
		if u.Outcome.Replayed && s.key != nil {
			s.key.replay()
		}
	}
	return problems, panicked
}

// stagedUnits makes one unit for each data source, in the order of their first
// writes.
func (s *SoftTransaction) stagedUnits() ([]*stagedUnit, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, s.discarded(err)
	}
	var units []*stagedUnit
	for _, w := range s.staged.writes {
		i := slices.IndexFunc(units, func(u *stagedUnit) bool { return u.c.target.DataSource == w.c.target.DataSource })
		if i < 0 {
			i = len(units)
			units = append(units, &stagedUnit{c: w.c})
		}
		units[i].writes = append(units[i].writes, w)
	}
	for _, u := range units {
		statements := make([]txlog.Statement, len(u.writes))
		receipt := s.key != nil
		for i, w := range u.writes {
			statements[i] = w.statement
			receipt = receipt || w.receipt
		}
		u.unit.Statements = statements
		u.InFlight = u.c.inFlight(scope{soft: s, withLogging: true, logging: LogBefore}, receipt, &u.unit, nil, u)
		u.KeepRefused = true
		if s.key != nil {
			back, err := s.key.mark(&u.unit)
			if err != nil {
				return nil, err
			}
			u.back = back
		}
	}
	return units, nil
}

// First implements besteffort.Attempts.
func (u *stagedUnit) First(ctx context.Context) attempt.Outcome {
	return u.c.pool.on(ctx, false, func(conn driver.Conn) attempt.Outcome {
		if s, ok := conn.(*attempt.Session); ok && s.Facts.Session != u.unit.Session {
			u.unit.Session = "" // another's, and nothing was sent in it
		}
		return u.c.replay(ctx, conn, &u.unit)
	})
}

// Again implements besteffort.Attempts.
func (u *stagedUnit) Again(ctx context.Context, step besteffort.Step) attempt.Outcome {
	return u.c.pool.on(ctx, true, func(conn driver.Conn) attempt.Outcome { return u.c.again(ctx, conn, step, &u.unit) })
}

// submit has the unit delivered. A driver's panic is for End to pass on once the other
// units are through; the job takes the unit over when its lease has run out.
func (u *stagedUnit) submit(ctx context.Context) {
	defer func() {
		if u.panicked = recover(); u.panicked != nil {
			u.answer(u.Panicked(u.panicked))
		}
	}()
	err := u.c.deliverer.Deliver(ctx, &u.InFlight)
	if err == nil {
		u.c.cfg.Counters.Delivered.Add(1)
	} else {
		u.c.cfg.Counters.failed(err)
	}
	u.answer(err)
}

// answer hands the outcome to the results that Exec returned.
func (u *stagedUnit) answer(err error) {
	u.err = err
	if u.back != nil && err != nil && !undecided(err) && !isParked(err) {
		u.back()
	}
	for i, w := range u.writes {
		switch {
		case err != nil:
			w.set(nil, err)
		case i < len(u.Outcome.Results):
			w.set(u.Outcome.Results[i], nil)
		default:
			w.set(noResult{ErrRowsUnknown}, nil)
		}
	}
}
