package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/sqltext"
)

// To a broker each message is a unit of its own, with the message's id. A broker has no local
// transactions and keeps no receipts.

// message applies s to a message, whose id is its first argument. It returns an error for settings
// that make no sense for a message.
func (s *scope) message(call *dialect.Call) error {
	keyed := s.key != nil || s.soft != nil && s.soft.key != nil
	switch {
	case s.required.Given():
		return errors.New("bed: the message was neither logged nor sent: it changes no rows, so RequireRows and AtLeastRows make no sense for it; publish it under a context without them")
	case keyed && !s.unlogged && !s.soft.isHome():
		return unusable("a broker keeps no receipts, so the request sent again would publish its message again; " +
			"publish it in a soft transaction made by WithTx, whose transaction is begun under the key")
	}
	s.key = nil
	if len(call.Args) > 0 {
		s.id, _ = call.Args[0].Value.(string)
	}
	if s.id == "" {
		return errors.New("bed: the message was neither logged nor sent: its first parameter is not its id")
	}
	if s.ordered && !s.unlogged {
		call.Args = append(slices.Clip(call.Args), driver.NamedValue{Name: sqltext.PublishKey, Ordinal: len(call.Args) + 1, Value: s.order})
	}
	return nil
}

// takes reports whether a write goes into the unit u of its data source.
func (u *stagedUnit) takes(w *stagedWrite) bool {
	return u.c.target.DataSource == w.c.target.DataSource && !w.c.sendsMessages()
}

// lanesOf groups units for delivery side by side. The units of one broker follow one another.
func lanesOf(units []*stagedUnit) (lanes [][]*stagedUnit) {
	at := map[string]int{}
	for _, u := range units {
		i, known := at[u.c.target.DataSource]
		if !known {
			i, lanes = len(lanes), append(lanes, nil)
			at[u.c.target.DataSource] = i
		}
		lanes[i] = append(lanes[i], u)
	}
	return lanes
}

// await makes the messages among the units of a group wait for its other units.
func await(units []*stagedUnit) {
	for _, message := range units {
		for _, part := range units {
			if message.c.sendsMessages() && !part.c.sendsMessages() {
				message.unit.After = append(message.unit.After, part.unit.ID)
				part.Awaited = true
			}
		}
	}
}

// run delivers units side by side. Messages follow the others, and only after their delivery. A
// staged group with only refusals leaves the log.
func (s *SoftTransaction) run(ctx context.Context, units []*stagedUnit, compensable bool, settled []*stagedUnit) {
	var parts, messages []*stagedUnit
	for _, u := range units {
		if s.home == nil && !compensable {
			u.Ending = besteffort.HoldRefused
		}
		if u.c.sendsMessages() {
			messages = append(messages, u)
		} else {
			parts = append(parts, u)
		}
	}
	first, then := parts, messages
	if len(parts)+len(settled) == 0 {
		first, then = messages, nil
	}
	deliverLanes(ctx, first, nil)
	if refusedWhole(ctx, first, then) {
		return
	}
	parkRefused(ctx, first)
	var behind error
	for _, u := range slices.Concat(settled, parts) {
		if u.err != nil && !u.c.sendsMessages() && behind == nil {
			behind = fmt.Errorf("not sent: it is published once entry %s of its group, for %s, is delivered", u.unit.ID, u.c.target.DataSource)
		}
	}
	deliverLanes(ctx, then, behind)
	parkRefused(ctx, then)
}

// isRefused reports whether u was refused, and is neither parked nor removed yet.
func (u *stagedUnit) isRefused() bool { return u.Held() && u.Ending == besteffort.HoldRefused }

// refusedWhole reports whether all of these units were refused. If so, it removes their entries,
// and the entries of the unsent messages of their group.
func refusedWhole(ctx context.Context, units, unsent []*stagedUnit) bool {
	if len(units) == 0 || slices.ContainsFunc(units, func(u *stagedUnit) bool { return !u.isRefused() }) {
		return false
	}
	inFlight := func(units []*stagedUnit) (ds []*besteffort.InFlight) {
		for _, u := range units {
			ds = append(ds, &u.InFlight)
		}
		return ds
	}
	errs := group.Refuse(ctx, units[0].c.deliverer, inFlight(units), inFlight(unsent))
	for i, err := range errs {
		slices.Concat(units, unsent)[i].err = err
	}
	return errs != nil
}

// parkRefused parks the refused units.
func parkRefused(ctx context.Context, units []*stagedUnit) {
	for _, u := range units {
		if u.isRefused() {
			u.err = u.c.deliverer.Refuse(ctx, &u.InFlight)
		}
	}
}

// deliverLanes delivers units side by side. If behind is not nil, it leaves them to the job for
// that reason.
func deliverLanes(ctx context.Context, units []*stagedUnit, behind error) {
	if len(units) == 0 {
		return
	}
	var all sync.WaitGroup
	lanes := lanesOf(units)
	for _, lane := range lanes[1:] {
		all.Go(func() { deliverLane(ctx, lane, behind) })
	}
	deliverLane(ctx, lanes[0], behind)
	all.Wait()
}

// deliverLane delivers the units of a lane in their order. Units after a pending message are left
// to the job too, so that they do not arrive first.
func deliverLane(ctx context.Context, lane []*stagedUnit, behind error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := map[string]bool{}
	for _, u := range lane {
		if u.behind = behind; behind != nil {
			cancel() // nothing is retried
		}
		wait := u.c.cfg.OrderWait
		if sent[u.unit.Behind] { // its turn has come
			wait = max(wait, u.c.cfg.LogTimeout)
		}
		u.submit(ctx, wait)
		var pending *PendingError
		if behind == nil && errors.As(u.err, &pending) {
			behind = fmt.Errorf("not sent, for a message before it is pending: %w", pending.Cause)
		}
		sent[u.unit.ID] = u.err == nil
	}
}
