package bedsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/txlog"
)

// commitPatience is how long End waits for the arrival of an unanswered COMMIT.
const commitPatience = time.Second

// homeEnd is the End of a soft transaction made by WithTx, with its committed units.
type homeEnd struct {
	*home
	units []*stagedUnit
	// done are the settled units.
	done []*stagedUnit
	// discarded means that an entry was discarded before End.
	discarded bool
	problems  []error
}

// finish delivers the committed units. It returns what finishStaged returns.
func (h *home) finish(ctx context.Context) (problems []error, panicked any) {
	h.mu.Lock()
	e := &homeEnd{home: h, units: h.units}
	state, writes := h.state, slices.Clone(h.soft.staged.writes)
	h.mu.Unlock()
	if state == homeOpen && h.local.gone() {
		state = homeRolledBack
	}
	var err error
	switch {
	case len(writes) == 0:
		return nil, nil
	case state == homeReplayed:
		if err = h.makeUnits(ctx); err == nil {
			for _, u := range h.units {
				e.answered(ctx, u)
			}
			return e.problems, nil
		}
	case state == homeRolledBack, state == homeUnknown && len(e.units) == 0: // it ended unseen, without the entries
		err = ErrRolledBack
	case state == homeOpen:
		err = ErrNotCommitted
	case state == homeUnknown:
		err = e.find(ctx)
	}
	if err != nil {
		for _, u := range e.units {
			u.answer(err)
		}
		drop(writes, err)
		return []error{err}, nil
	}
	return e.deliver(ctx, e.take(ctx, state))
}

// settled notes the outcome of a unit without a delivery by End; nil means that the job has
// delivered it.
func (e *homeEnd) settled(u *stagedUnit, err error) {
	u.answer(err)
	e.done = append(e.done, u)
	if err != nil {
		u.c.cfg.Counters.failed(err)
		e.problems = append(e.problems, err)
		return
	}
	if u.Ending != besteffort.HoldSettled { // else its group may still undo it
		e.soft.arrive(u.c.target.DataSource)
	}
}

func (e *homeEnd) pending(u *stagedUnit, parked bool, cause error) {
	e.settled(u, &PendingError{EntryID: u.unit.Decides(), DataSource: u.c.target.DataSource, Parked: parked, Cause: cause})
}

// answered settles a unit of a transaction answered by its key: an earlier request recorded it,
// under an unknown id.
func (e *homeEnd) answered(ctx context.Context, u *stagedUnit) {
	if applied, _ := u.applied(ctx); applied {
		for _, w := range u.writes {
			w.set(noResult{ErrRowsUnknown})
		}
		e.soft.arrive(u.c.target.DataSource)
		return
	}
	e.settled(u, &PendingError{DataSource: u.c.target.DataSource, Cause: fmt.Errorf("%w: what it recorded then is delivered, or waits in the log, or is parked there", errReplayed)})
}

// find looks for the entries after an unanswered COMMIT: all are in the log, or none. It keeps the
// units that are there, and settles those that the job has delivered since. It returns an error if
// no commit is certain.
func (e *homeEnd) find(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, commitPatience)
	defer cancel()
	missing, err := e.missing(ctx)
	for pause := jitter.BackOff(5*time.Millisecond, commitPatience/10); (err != nil || len(missing) == len(e.units)) && jitter.Sleep(waiting, pause.NextBackOff()); {
		missing, err = e.missing(ctx)
	}
	if err != nil {
		return because(ErrUnknownOutcome, fmt.Errorf("the log cannot say whether the transaction of WithTx was committed; if it was, the job delivers its writes: %w", err))
	}
	gone := func(u *stagedUnit) bool { return slices.Contains(missing, u.unit.ID) }
	if len(missing) == len(e.units) && !slices.ContainsFunc(e.units, func(u *stagedUnit) bool {
		applied, _ := u.applied(ctx)
		state, _ := u.status(ctx)
		return applied || state == StateDiscarded
	}) {
		return because(ErrUnknownOutcome, errors.New("the COMMIT of the transaction of WithTx was not answered, and its entries are not in the log: it was rolled back, or the job was faster, or this node of the log does not show them yet; "+
			"what it committed, the job delivers"))
	}
	all := e.units
	e.units = slices.DeleteFunc(slices.Clone(all), gone)
	for _, u := range all {
		if gone(u) {
			e.gone(ctx, u)
		}
	}
	return nil
}

// missing returns the ids of units without an entry in the log. It only reads, because a write
// would wait for an open transaction.
func (e *homeEnd) missing(ctx context.Context) (ids []string, err error) {
	cfg := &e.units[0].c.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.LogTimeout)
	defer cancel()
	for _, u := range e.units {
		ids = append(ids, u.unit.ID)
	}
	return cfg.Storage.Missing(ctx, ids)
}

// gone settles a committed unit that is no longer in the log: the job has delivered it, unless an
// operator discarded it.
func (e *homeEnd) gone(ctx context.Context, u *stagedUnit) {
	switch state, err := u.status(ctx); {
	case err != nil:
		e.pending(u, false, err)
	case state == StateDiscarded:
		// The job's attempt may have been applied, or be under way still.
		e.discarded = true
		e.settled(u, because(ErrUnknownOutcome, fmt.Errorf("an operator discarded entry %s, the write to %s, before End: it is applied only if the job's attempt was", u.unit.ID, u.c.target.DataSource)))
	case state == StateDelivered || state == StateUnknown: // whose receipt may have been purged
		e.settled(u, nil)
	default:
		e.pending(u, state == StateParked, errors.New("its entry is not in the log, and its receipt is not there"))
	}
}

// take returns the units to deliver here, and settles the units that others have taken. A unit
// with a receipt whose place is known needs no lease for the first moments after an answered COMMIT:
// if the job is faster, its receipt is there.
func (e *homeEnd) take(ctx context.Context, state homeState) (ready []*stagedUnit) {
	var claimed []*entry.Unit
	var by []*stagedUnit
	for _, u := range e.units {
		cfg := &u.c.cfg
		until := e.sent.Add(min(cfg.Lease, cfg.ReceiptRetention/2, cfg.KeyRetention/2))
		switch {
		case u.unit.Behind != "":
			u.c.deliverer.Adopt(&u.InFlight) // it has no lease until its turn comes
			ready = append(ready, u)
		case state == homeCommitted && u.unit.Receipt != "" && u.c.target.Known(false) != nil && !(entry.Lease{Deadline: until}).Over():
			u.c.deliverer.Adopt(&u.InFlight)
			u.c.deliverer.KeepUntaken(&u.InFlight, until)
			ready = append(ready, u)
		default:
			claimed, by = append(claimed, &u.unit), append(by, u)
		}
	}
	if len(claimed) == 0 {
		return ready
	}
	cfg := &by[0].c.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.LogTimeout)
	defer cancel()
	lost, err := cfg.Storage.Renew(ctx, cfg.Lease, claimed...)
	for _, u := range by {
		switch {
		case err != nil:
			e.pending(u, false, err)
		case slices.Contains(lost, &u.unit):
			e.overtaken(ctx, u)
		default:
			u.unit.AtOnce = false
			u.c.deliverer.Adopt(&u.InFlight)
			u.c.deliverer.Keep(&u.InFlight)
			ready = append(ready, u)
		}
	}
	slices.SortFunc(ready, func(a, b *stagedUnit) int { return slices.Index(e.units, a) - slices.Index(e.units, b) })
	return ready
}

// overtaken settles a committed unit that another client has taken. It asks the log first, because
// the job removes an entry after leaving its receipt.
func (e *homeEnd) overtaken(ctx context.Context, u *stagedUnit) {
	got, err := u.c.cfg.Storage.Get(ctx, u.unit.ID)
	applied, _ := u.applied(ctx)
	switch {
	case applied:
		e.settled(u, nil)
	case errors.Is(err, txlog.ErrNotFound):
		e.gone(ctx, u)
	case err != nil:
		e.pending(u, false, err)
	default:
		e.pending(u, got.Parked, fmt.Errorf("the job has taken it: %w", txlog.ErrLeaseLost))
	}
}

// deliver delivers the ready units, and returns End's report of the whole.
func (e *homeEnd) deliver(ctx context.Context, ready []*stagedUnit) (problems []error, panicked any) {
	g := group.Group{Open: len(e.problems) > 0, Compensating: e.discarded}
	if e.undo == nil {
		e.soft.arrive(e.source)
	}
	problems, whole, panicked := e.soft.deliver(ctx, ready, e.undo, g, e.done...)
	if whole { // what was learnt of a unit before was not the last word
		for _, u := range e.done {
			u.answer(errors.Join(problems...))
		}
	}
	if !whole {
		problems = append(e.problems, problems...)
	}
	if len(problems) == 0 || e.own == nil { // else its own rows are undone, or may be
		e.soft.arrive(e.source)
	}
	return problems, panicked
}
