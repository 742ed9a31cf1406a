package txlog

import (
	"context"
	"sync"
	"time"
)

// Keeper renews the leases of units for as long as they are worked on. A unit
// that is held for less than a third of its lease costs no more than a place
// in a list; a goroutine exists only while renewals are being sent. It is safe
// for concurrent use. There is nothing to close: it is idle once nothing is
// held.
type Keeper struct {
	storage Storage
	lease   time.Duration

	mu    sync.Mutex
	held  hold // the ring of all that are held begins here
	armed bool // a timer is set, or renewals are being sent
	stop  context.CancelFunc
}

// hold is what the keeper knows of a unit.
type hold struct {
	keeper     *Keeper
	unit       *Unit
	deadline   time.Time
	lost       bool
	prev, next *hold
}

// The keeper's times, as fractions of the lease.
const (
	renewTick    = 3  // looks every third
	renewTimeout = 3  // one call may take a third
	renewAgain   = 12 // after a failure it looks sooner
)

// NewKeeper makes a keeper that prolongs leases in s to lease from the moment
// of each renewal.
func NewKeeper(s Storage, lease time.Duration) *Keeper {
	k := &Keeper{storage: s, lease: max(lease, minLease)}
	k.held.prev, k.held.next = &k.held, &k.held
	return k
}

// Hold keeps the lease of u from running out until release is called. The
// caller must own u under u.Lease. Until release returned, nobody may write to
// u's ID, TransactionID, DataSource, Lease or Statements; release brings
// u.Lease.Deadline up to date. It may be called more than once. A unit is held
// once at a time.
func (k *Keeper) Hold(u *Unit) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := &hold{keeper: k, unit: u, deadline: u.Lease.Deadline, prev: k.held.prev, next: &k.held}
	h.prev.next, h.next.prev = h, h
	u.held = h
	if !k.armed {
		k.armed = true
		time.AfterFunc(k.lease/renewTick, k.renew)
	}
	return h.release
}

func (h *hold) release() {
	k := h.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.next == nil {
		return
	}
	h.unit.Lease.Deadline = h.deadline
	if h.unit.held == h {
		h.unit.held = nil
	}
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
	if k.none() && k.stop != nil {
		k.stop()
	}
}

// none reports whether nothing is held.
func (k *Keeper) none() bool { return k.held.next == &k.held }

// holding gives what is known of u; nil if it is not held. A copy of a held
// unit is not.
func (k *Keeper) holding(u *Unit) *hold {
	if h := u.held; h != nil && h.unit == u && h.keeper == k {
		return h
	}
	return nil
}

// Lost reports whether u may belong to somebody else by now: its lease was
// found taken, or its deadline passed without a renewal, if only because this
// process or its machine stood still. Once lost, a held unit stays lost. For a
// unit that is not held its own deadline decides. To be asked by u's holder
// before it acts.
func (k *Keeper) Lost(u *Unit) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.holding(u)
	if h == nil {
		return passed(u.Lease.Deadline)
	}
	if passed(h.deadline) {
		h.lost = true
	}
	return h.lost
}

// Refresh brings u.Lease.Deadline up to date with the renewals so far. To be
// called by u's holder before it tells the store what became of u: the store
// goes by the deadline.
func (k *Keeper) Refresh(u *Unit) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.holding(u); h != nil {
		u.Lease.Deadline = h.deadline
	}
}

// passed looks at both clocks: the monotonic one stands still while a machine
// sleeps, the wall clock may be set back.
func passed(deadline time.Time) bool {
	now := time.Now()
	return !now.Before(deadline) || !now.Round(0).Before(deadline.Round(0))
}

// renew runs in the timer's goroutine.
func (k *Keeper) renew() {
	next := k.lease / renewTick
	if due, shadows, ctx, cancel := k.due(); len(due) > 0 {
		lost, err := k.storage.Renew(ctx, k.lease, shadows...)
		cancel()
		k.renewed(due, shadows, lost)
		if err != nil {
			next = k.lease / renewAgain
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop = nil
	if k.none() {
		k.armed = false
		return
	}
	time.AfterFunc(next, k.renew)
}

// due gives the units that have less than two thirds of their lease left, and
// what the store is to write to.
func (k *Keeper) due() (due []*hold, shadows []*Unit, ctx context.Context, cancel context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := k.held.next; h != &k.held; h = h.next {
		if passed(h.deadline) {
			// Nobody may have taken it yet, but its holder may have been told
			// already that it is lost.
			h.lost = true
		}
		if !h.lost && time.Until(h.deadline) <= k.lease*2/3 {
			due = append(due, h)
			shadows = append(shadows, h.shadow())
		}
	}
	if len(due) > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), max(k.lease/renewTimeout, minLease))
		k.stop = cancel
	}
	return due, shadows, ctx, cancel
}

// shadow is a copy of the unit for the store to write to, so that the unit
// itself stays its holder's alone.
func (h *hold) shadow() *Unit {
	u := h.unit
	return &Unit{
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, Statements: u.Statements,
		Lease: Lease{Token: u.Lease.Token, Deadline: h.deadline},
	}
}

// renewed takes over what the store said. After an error it may have moved the
// deadlines of some.
func (k *Keeper) renewed(due []*hold, shadows, lost []*Unit) {
	gone := make(map[*Unit]bool, len(lost))
	for _, u := range lost {
		gone[u] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, h := range due {
		if gone[shadows[i]] {
			h.lost = true
		} else if !h.lost {
			h.deadline = shadows[i].Lease.Deadline
		}
	}
}
