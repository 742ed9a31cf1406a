package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// To a broker each message is a unit of its own, whose id is the message's. It takes no
// local transactions and keeps no receipts.

// message reads what s says of a message, whose first argument is its id, or says what of
// that makes no sense.
func (s *scope) message(call *delivery.Call) error {
	keyed := s.key != nil || s.soft != nil && s.soft.key != nil
	switch {
	case s.required.Given():
		return errors.New("bed: the message was neither logged nor sent: it changes no rows, so RequireRows and AtLeastRows make no sense for it; publish it under a context without them")
	case keyed && !s.skip && !s.soft.isHome():
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
	if s.ordered && !s.skip {
		call.Args = append(slices.Clip(call.Args), driver.NamedValue{Name: sqltext.PublishKey, Ordinal: len(call.Args) + 1, Value: s.order})
	}
	return nil
}

// takes reports whether a write goes into the unit u of its data source.
func (u *stagedUnit) takes(w *stagedWrite) bool {
	return u.c.target.DataSource == w.c.target.DataSource && !w.c.sendsMessages()
}

// lanesOf gives units that are delivered side by side: those of one broker one after
// another.
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

// await has the messages among the units of a group wait for its other units.
func await(units []*stagedUnit) {
	for i, u := range units {
		u.awaitIn(units[:i])
	}
}

// awaitIn adds u to a group: a message waits for the parts there, and those messages wait
// for a part, which it gives.
func (u *stagedUnit) awaitIn(group []*stagedUnit) (waiting []*stagedUnit) {
	for _, other := range group {
		message, part := other, u
		if u.c.sendsMessages() {
			message, part = u, other
		}
		if !message.c.sendsMessages() || part.c.sendsMessages() || slices.Contains(message.unit.After, part.unit.ID) {
			continue
		}
		message.unit.After = append(slices.Clip(message.unit.After), part.unit.ID)
		if part.Awaited = true; message == other {
			waiting = append(waiting, message)
		}
	}
	return waiting
}

// run delivers units side by side, the messages among them after the others, and only if
// these are delivered. A staged group of which all is refused leaves the log.
func (s *SoftTransaction) run(ctx context.Context, units []*stagedUnit, turns bool, settled []*stagedUnit) {
	var parts, messages []*stagedUnit
	for _, u := range units {
		if u.HoldRefused = s.home == nil && !turns; u.c.sendsMessages() {
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

// refusedWhole reports whether all of these units were refused. Then their entries are
// removed, and those of the messages of their group that were not sent.
func refusedWhole(ctx context.Context, units, unsent []*stagedUnit) bool {
	if len(units) == 0 || slices.ContainsFunc(units, func(u *stagedUnit) bool { return !u.Refused() }) {
		return false
	}
	inFlight := func(units []*stagedUnit) (ds []*besteffort.InFlight) {
		for _, u := range units {
			ds = append(ds, &u.InFlight)
		}
		return ds
	}
	errs := units[0].c.deliverer.RefuseAll(ctx, inFlight(units), inFlight(unsent))
	for i, err := range errs {
		slices.Concat(units, unsent)[i].err = err
	}
	return errs != nil
}

// parkRefused parks those units that were refused.
func parkRefused(ctx context.Context, units []*stagedUnit) {
	for _, u := range units {
		if u.Refused() {
			u.err = u.c.deliverer.Park(ctx, &u.InFlight)
		}
	}
}

// deliverLanes delivers units side by side. behind is why they are left to the job; nil:
// they are not.
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

// deliverLane delivers the units of a lane in their order. What comes after a pending message
// is left to the job too, so that it does not arrive first.
func deliverLane(ctx context.Context, lane []*stagedUnit, behind error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := map[string]bool{}
	for _, u := range lane {
		if u.behind = behind; behind != nil {
			cancel() // nothing is retried
		}
		u.TurnHasCome = sent[u.unit.Behind]
		u.submit(ctx)
		var pending *PendingError
		if behind == nil && errors.As(u.err, &pending) {
			behind = fmt.Errorf("not sent, for a message before it is pending: %w", pending.Cause)
		}
		sent[u.unit.ID] = u.err == nil
	}
}
