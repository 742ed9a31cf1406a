package bedsql

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/sqltext"
)

// A message to a broker and a call of a service are units of their own, with an id that they bring
// along. Neither has local transactions or receipts in a database.

// dispatch routes a message or a call.
func (c *Conn) dispatch(ctx context.Context, under scope, s statement) (r attempt.Reply, err error) {
	apply := (*scope).message
	if c.c.dialect.Flavor == sqltext.Calls {
		apply = (*scope).call
	}
	if len(s.Args) > 0 {
		under.id, _ = s.Args[0].Value.(string)
	}
	switch {
	case under.required.Given():
		return r, errors.New("bed: a message or a call changes no rows, so RequireRows and AtLeastRows make no sense for it: send it under a context without them")
	case under.id == "":
		return r, errors.New("bed: a message or a call begins with its id, and the first parameter is none")
	}
	if err := apply(&under, c.c, &s.Call); err != nil {
		return r, err
	}
	under.key = nil
	defer func() {
		if err != nil && under.called != nil && !under.called.Sent {
			under.called.Back()
		}
	}()
	switch soft := c.stagedIn(under); {
	case soft != nil:
		return soft.record(ctx, under, c, s)
	case under.unlogged:
		return c.passThrough(ctx, under, s)
	}
	return under.submit(ctx, c, s)
}

// add adds a parameter to a message or a call.
func add(call *dialect.Call, name string, value any) {
	call.Args = append(slices.Clip(call.Args), driver.NamedValue{Name: name, Ordinal: len(call.Args) + 1, Value: value})
}

// message applies s to a message.
func (s *scope) message(_ *connector, call *dialect.Call) error {
	keyed := s.key != nil || s.soft != nil && s.soft.key != nil
	if keyed && !s.unlogged && !s.soft.isHome() {
		return unusable("a broker keeps no receipts, so the request sent again would publish its message again; " +
			"publish it in a soft transaction made by WithTx, whose transaction is begun under the key")
	}
	if s.ordered && !s.unlogged {
		add(call, sqltext.PublishKey, s.order)
	}
	return nil
}

// call gives a call its key, the same for all attempts. It comes from the entry, or from the key of the
// request: the request sent again makes the same calls. Each call of a staged soft transaction has a
// part of that key.
func (s *scope) call(c *connector, call *dialect.Call) (err error) {
	key, of := s.key, s.id
	if key == nil && s.soft != nil {
		key = s.soft.key
	}
	if key != nil && !s.unlogged && !s.soft.isHome() {
		if s.soft != nil && s.soft.staged != nil {
			if n := s.soft.staged.call(s.soft, c.target.DataSource); n > 1 {
				key = key.Part(fmt.Sprint("call ", n))
			}
		}
		if s.called, err = key.Take(c.keys); err != nil {
			return err
		}
		s.called.Peer, of = true, s.called.Receipt()
	}
	of = fmt.Sprintf("bed-%x", sha256.Sum256(entry.Apart(c.receipts.LogIdentity, c.target.DataSource, of)))
	add(call, sqltext.CallKey, of)
	if slices.ContainsFunc(call.Args, func(a driver.NamedValue) bool { return a.Name == sqltext.CallScoped }) {
		s.receiptKey = of
	}
	if s.called != nil {
		add(call, sqltext.CallRequest, true)
	}
	return nil
}

// call counts the calls of a service in a group.
func (g *staging) call(s *SoftTransaction, dataSource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.calls[dataSource]++
	return g.calls[dataSource]
}

// lanesOf groups units for delivery side by side. The units of one broker follow one another.
func lanesOf(units []*stagedUnit) (lanes [][]*stagedUnit) {
	for _, u := range units {
		i := slices.IndexFunc(lanes, func(lane []*stagedUnit) bool { return lane[0].c.target.DataSource == u.c.target.DataSource })
		if i < 0 {
			i, lanes = len(lanes), append(lanes, nil)
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
