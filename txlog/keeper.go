package txlog

import (
	"context"
	"sync"
	"time"
)

// Keeper renews the leases of units for as long as they are worked on. A unit
// that is held for less than a third of its lease costs no more than a place
// in a map; a goroutine exists only while renewals are being sent. It is safe
// for concurrent use. There is nothing to close: it is idle once nothing is
// held.
type Keeper struct {
	storage Storage
	lease   time.Duration

	mu    sync.Mutex
	held  map[*Unit]*hold
	armed bool // a timer is set, or renewals are being sent
	stop  context.CancelFunc
}

// hold is what the keeper knows of a unit. The store writes to a copy, so that
// the unit itself stays its holder's alone.
type hold struct {
	shadow   *Unit
	deadline time.Time
	lost     bool
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
	return &Keeper{storage: s, lease: max(lease, minLease), held: map[*Unit]*hold{}}
}

// Hold keeps the lease of u from running out until release is called. The
// caller must own u under u.Lease. Until release returned, nobody may write to
// u's ID, Lease or Statements; release brings u.Lease.Deadline up to date. It
// may be called more than once. A unit is held once at a time.
func (k *Keeper) Hold(u *Unit) (release func()) {
	shadow := *u
	h := &hold{shadow: &shadow, deadline: u.Lease.Deadline}
	k.mu.Lock()
	k.held[u] = h
	if !k.armed {
		k.armed = true
		time.AfterFunc(k.lease/renewTick, k.renew)
	}
	k.mu.Unlock()
	return func() { k.release(u, h) }
}

func (k *Keeper) release(u *Unit, h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[u] != h {
		return
	}
	u.Lease.Deadline = h.deadline
	delete(k.held, u)
	if len(k.held) == 0 && k.stop != nil {
		k.stop()
	}
}

// Lost reports whether u may belong to somebody else by now: its lease was
// found taken, or its deadline passed without a renewal, if only because this
// process or its machine stood still. Once lost, a held unit stays lost. For a
// unit that is not held its own deadline decides. To be asked by u's holder
// before it acts.
func (k *Keeper) Lost(u *Unit) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[u]
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
	if h := k.held[u]; h != nil {
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
		k.renewed(due, lost)
		if err != nil {
			next = k.lease / renewAgain
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop = nil
	if len(k.held) == 0 {
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
	for _, h := range k.held {
		if passed(h.deadline) {
			// Nobody may have taken it yet, but its holder may have been told
			// already that it is lost.
			h.lost = true
		}
		if !h.lost && time.Until(h.deadline) <= k.lease*2/3 {
			due = append(due, h)
			shadows = append(shadows, h.shadow)
		}
	}
	if len(due) > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), max(k.lease/renewTimeout, minLease))
		k.stop = cancel
	}
	return due, shadows, ctx, cancel
}

// renewed takes over what the store said. After an error it may have moved the
// deadlines of some.
func (k *Keeper) renewed(due []*hold, lost []*Unit) {
	gone := make(map[*Unit]bool, len(lost))
	for _, u := range lost {
		gone[u] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range due {
		if gone[h.shadow] {
			h.lost = true
		} else if !h.lost {
			h.deadline = h.shadow.Lease.Deadline
		}
	}
}
