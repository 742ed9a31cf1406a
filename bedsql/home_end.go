package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/txlog"
)

// commitPatience is how long End waits for the arrival of an unanswered COMMIT.
const commitPatience = time.Second

// homeEnd is the End of a soft transaction made by WithTx. The entries are rows of the
// transaction, so only the log knows whether they exist.
type homeEnd struct {
	*home
	units []*stagedUnit
	// done are the settled units.
	done []*stagedUnit
	// discarded means that an entry was discarded before End.
	discarded bool
	state     homeState
	sent      time.Time
	// sure means that state and units come from the wrapped connection.
	sure     bool
	problems []error
}

// finish delivers the committed units. It returns what finishStaged returns.
func (h *home) finish(ctx context.Context) (problems []error, panicked any) {
	select {
	case h.turn <- struct{}{}:
	default:
		select {
		case h.turn <- struct{}{}:
		case <-ctx.Done():
			return []error{because(ErrUnknownOutcome, fmt.Errorf("a write of soft transaction %s was still being recorded at its end: %w", h.soft.id, ctx.Err()))}, nil
		}
	}
	defer func() { <-h.turn }()
	h.mu.Lock()
	e := &homeEnd{home: h, units: h.units, state: h.state, sent: h.sent, sure: h.local != nil && !h.distrusted}
	h.units = nil // what is rolled back from now on is seen in the log
	replayed := h.replayed
	h.mu.Unlock()
	for _, u := range replayed {
		e.answered(ctx, u)
	}
	switch {
	case len(e.units) == 0 && e.state == homeUnknown:
		return append(e.problems, because(ErrUnknownOutcome, errors.New("the COMMIT of the transaction of WithTx was not answered, and it recorded nothing by which to find out"))), nil
	case len(e.units) == 0:
		return e.problems, nil
	case e.sure && (e.state == homeRolledBack || e.state == homeOpen && h.local.gone()):
		return e.all(ErrRolledBack), nil
	case e.sure && e.state == homeOpen:
		return e.all(ErrNotCommitted), nil
	case !e.sure || e.state != homeCommitted:
		if err := e.find(ctx); err != nil {
			return e.all(err), nil
		}
	}
	return e.deliver(ctx, e.take(ctx))
}

// all settles every write with the same error.
func (e *homeEnd) all(err error) []error {
	for _, u := range e.units {
		u.answer(err)
	}
	return []error{err}
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
			w.set(noResult{ErrRowsUnknown}, nil)
		}
		e.soft.arrive(u.c.target.DataSource)
		return
	}
	e.settled(u, &PendingError{DataSource: u.c.target.DataSource, Cause: fmt.Errorf("%w: what it recorded then is delivered, or waits in the log, or is parked there", errReplayed)})
}

// gone settles a committed unit that is no longer in the log: the job has delivered it, unless an
// operator discarded it. The recorded statements may be unknown to us. If there is then no receipt
// either (the job always leaves one), the commit is not visible yet on the node we read.
func (e *homeEnd) gone(ctx context.Context, u *stagedUnit) {
	switch state, err := u.status(ctx); {
	case err != nil:
		e.pending(u, false, err)
	case state == StateDiscarded:
		// The job's attempt may have been applied, or be under way still.
		e.discarded = true
		e.settled(u, because(ErrUnknownOutcome, fmt.Errorf("an operator discarded entry %s, the write to %s, before End: it is applied only if the job's attempt was", u.unit.ID, u.c.target.DataSource)))
	case (state == StateDelivered || state == StateUnknown) && (u.unit.Receipt == "" || e.sure): // whose receipt may have been purged
		e.settled(u, nil)
	default:
		e.pending(u, state == StateParked, errors.New("its entry is not in the log, and its receipt is not there"))
	}
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

// find keeps the units that are in the log, and settles the others. It returns an error for all of
// them if no commit is certain.
func (e *homeEnd) find(ctx context.Context) error {
	missing, err := e.missing(ctx)
	none := func() bool { return err != nil || len(missing) == len(e.units) }
	if none() {
		if e.state == homeOpen && e.local != nil {
			return ErrNotCommitted
		} else if e.state == homeOpen {
			if err := e.stillOpen(ctx); err != nil {
				return err
			}
		}
		missing, err = e.missing(ctx) // it may have been committed since
	}
	waiting, cancel := context.WithTimeout(ctx, commitPatience)
	defer cancel()
	for pause := jitter.BackOff(5*time.Millisecond, commitPatience/10); e.state == homeUnknown && none() && jitter.Sleep(waiting, pause.NextBackOff()); {
		missing, err = e.missing(ctx)
	}
	if err != nil {
		return because(ErrUnknownOutcome, fmt.Errorf("the log cannot say whether the transaction of WithTx was committed; if it was, the job delivers its writes: %w", err))
	}
	return e.separate(ctx, missing)
}

// separate keeps the units that are in the log. The receipt of a missing unit shows whether it was
// delivered, because the job leaves the receipt of an entry written in doubt. Without a receipt
// the unit was rolled back, provided that others are committed.
func (e *homeEnd) separate(ctx context.Context, missing []string) error {
	var there, delivered, discarded, compensated, open []*stagedUnit
	for _, u := range e.units {
		if !slices.Contains(missing, u.unit.ID) {
			there = append(there, u)
			continue
		}
		applied, err := u.applied(ctx)
		state, serr := u.status(ctx)
		err = errors.Join(err, serr)
		switch {
		case !applied && state == StateDiscarded:
			discarded = append(discarded, u)
		case applied:
			delivered = append(delivered, u)
		case err == nil && u.unit.Receipt != "":
			compensated = append(compensated, u)
		default:
			open = append(open, u)
		}
	}
	if len(there)+len(delivered)+len(discarded) == 0 {
		switch e.state {
		case homeRolledBack:
			return ErrRolledBack
		case homeCommitted:
			return because(ErrUnknownOutcome, errors.New("none of what was recorded in the transaction of WithTx is in the log: it was rolled back to a savepoint, or the job was faster, or this node of the log does not show it yet; "+
				"what is committed, the job delivers"))
		}
		return because(ErrUnknownOutcome, errors.New("the transaction of WithTx was rolled back, unless its COMMIT was not answered, or the job was faster; "+
			"what it committed, the job delivers"))
	}
	e.units = there
	for _, u := range delivered {
		e.settled(u, nil)
	}
	for _, u := range discarded {
		e.gone(ctx, u)
	}
	for _, u := range compensated {
		drop(u.writes, errWithRolledBack)
	}
	for _, u := range open {
		e.settled(u, because(ErrUnknownOutcome, fmt.Errorf("the writes to %s were rolled back to a savepoint, or the job has delivered them", u.c.target.DataSource)))
	}
	return nil
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

// take returns the units to deliver here, and settles the units that others have taken. A unit
// with a receipt needs no lease for the first moments after an answered COMMIT: if the job is
// faster, its receipt is there.
func (e *homeEnd) take(ctx context.Context) (ready []*stagedUnit) {
	var claimed []*entry.Unit
	var by []*stagedUnit
	for _, u := range e.units {
		cfg := &u.c.cfg
		until := e.sent.Add(min(cfg.Lease, cfg.ReceiptRetention/2, cfg.KeyRetention/2))
		if !e.sure && !e.reread(ctx, u) {
			continue
		}
		switch {
		case u.unit.Behind != "":
			u.c.deliverer.Adopt(&u.InFlight) // it has no lease until its turn comes
			ready = append(ready, u)
		case e.sure && e.state == homeCommitted && u.unit.Receipt != "" && !(entry.Lease{Deadline: until}).Over():
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

// reread makes u equal to its entry in the log, because an unseen rollback to a savepoint may have
// removed its last writes. If it cannot read the entry, it settles u and returns false.
func (e *homeEnd) reread(ctx context.Context, u *stagedUnit) bool {
	ctx, cancel := context.WithTimeout(ctx, u.c.cfg.LogTimeout)
	defer cancel()
	switch got, err := u.c.cfg.Storage.Get(ctx, u.unit.ID); {
	case errors.Is(err, txlog.ErrNotFound): // it was there
		e.overtaken(ctx, u)
	case err != nil:
		e.pending(u, false, err)
	case got.Unreadable != nil:
		e.pending(u, got.Parked, got.Unreadable)
	default:
		n := min(len(got.Statements), len(u.writes))
		drop(u.writes[n:], errWithRolledBack)
		u.writes, u.unit.Statements, u.unit.Fingerprint = u.writes[:n], got.Statements, got.Fingerprint
		u.unit.Receipt, u.unit.CompensateAfter, u.Ending = got.Receipt, got.CompensateAfter, besteffort.ParkRefused
		if got.Group() {
			u.Ending = besteffort.HoldSettled
		}
		u.unit.Order, u.unit.Behind = got.Order, got.Behind
		return true
	}
	return false
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

// stillOpen returns ErrNotCommitted if the transaction of a bare driver is still open. It joins
// the driver's error, perhaps a rollback by the server. Otherwise, and for a connection, which
// goes on after its COMMIT, it returns nil.
func (e *homeEnd) stillOpen(ctx context.Context) error {
	if _, session := e.tx.(*sql.Conn); session {
		return nil
	}
	rows, err := e.tx.QueryContext(ctx, "SELECT 1")
	if err == nil {
		for rows.Next() {
			continue
		}
		err = errors.Join(rows.Err(), rows.Close())
	}
	switch {
	case err == nil:
		return ErrNotCommitted
	case ctx.Err() != nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone):
		return nil
	}
	return because(ErrNotCommitted, err)
}
