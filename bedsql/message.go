package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"

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
			"publish it in a soft transaction made by With, whose transaction is begun under the key")
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

// deliverLane delivers the units of a lane in their order. What comes after a pending message
// is left to the job too, which keeps the order as far as it can.
func deliverLane(ctx context.Context, lane []*stagedUnit) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var behind error
	sent := map[string]bool{}
	for _, u := range lane {
		if u.behind = behind; behind != nil {
			cancel() // nothing is retried
		}
		u.TurnHasCome = sent[u.unit.Behind]
		u.submit(ctx)
		var pending *PendingError
		if behind == nil && errors.As(u.err, &pending) {
			behind = pending.Cause
		}
		sent[u.unit.ID] = u.err == nil
	}
}
