// Package lease keeps the leases of units for as long as they are worked on.
package lease

import (
	"context"
	"sync"
	"time"

	"github.com/bedsql/bed/txlog"
)

// Renewer renews the leases of units for as long as they are worked on. A unit
// that is kept for less than a third of its lease costs no more than a place
// in a list; a goroutine exists only while renewals are being sent. It is safe
// for concurrent use. There is nothing to close: it is idle once no lease is
// kept.
type Renewer struct {
	storage txlog.Storage
	lease   time.Duration

	mu    sync.Mutex
	ring  Kept // all that are kept
	armed bool // a timer is set, or renewals are being sent
	stop  context.CancelFunc
}

// Kept is the lease of a unit while it is renewed.
type Kept struct {
	renewer  *Renewer
	unit     *txlog.Unit
	deadline time.Time
	lost     bool
	// untaken: the log knows of no lease yet, and the unit's deadline stays zero. The
	// first renewal takes one.
	untaken    bool
	prev, next *Kept
}

// The renewer's times, as fractions of the lease.
const (
	renewTick    = 3  // looks every third
	renewTimeout = 3  // one call may take a third
	renewAgain   = 12 // after a failure it looks sooner
)

// shortest bounds a lease: the log's clock counts milliseconds.
const shortest = time.Millisecond

// NewRenewer makes a renewer that prolongs leases in s to lease from the moment
// of each renewal.
func NewRenewer(s txlog.Storage, lease time.Duration) *Renewer {
	r := &Renewer{storage: s, lease: max(lease, shortest)}
	r.ring.prev, r.ring.next = &r.ring, &r.ring
	return r
}

// Keep keeps the lease of u from running out until it is released. The caller
// must own u under u.Lease. Until then nobody may write to u's ID,
// TransactionID, DataSource, Lease or Statements. A unit is kept once at a time.
func (r *Renewer) Keep(u *txlog.Unit) *Kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &Kept{renewer: r, unit: u, deadline: u.Lease.Deadline, prev: r.ring.prev, next: &r.ring}
	k.prev.next, k.next.prev = k, k
	if !r.armed {
		r.armed = true
		time.AfterFunc(r.lease/renewTick, r.renew)
	}
	return k
}

// KeepUntaken is Keep for a unit that belongs to its token without a lease: until the
// first renewal, which takes one, anybody else may take the unit. It counts as lost
// after the time until, unless it is renewed before.
func (r *Renewer) KeepUntaken(u *txlog.Unit, until time.Time) *Kept {
	u.Lease.Deadline = until
	k := r.Keep(u)
	r.mu.Lock()
	defer r.mu.Unlock()
	k.untaken, u.Lease.Deadline = true, time.Time{}
	return k
}

// Release ends the renewal and brings the unit's deadline up to date. It may be
// called more than once, and of nil.
func (k *Kept) Release() {
	if k == nil {
		return
	}
	r := k.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.next == nil {
		return
	}
	if !k.untaken {
		k.unit.Lease.Deadline = k.deadline
	}
	k.prev.next, k.next.prev = k.next, k.prev
	k.prev, k.next = nil, nil
	if r.ring.next == &r.ring && r.stop != nil {
		r.stop()
	}
}

// Lost reports whether the unit may belong to somebody else by now: its lease was
// found taken, or its deadline passed without a renewal, if only because this
// process or its machine stood still. Once lost it stays lost. Its owner asks
// before it acts. A nil lease is never lost.
func (k *Kept) Lost() bool {
	if k == nil {
		return false
	}
	k.renewer.mu.Lock()
	defer k.renewer.mu.Unlock()
	k.lost = k.lost || txlog.Lease{Deadline: k.deadline}.Over()
	return k.lost
}

// Refresh brings the unit's deadline up to date with the renewals so far. The
// owner calls it before it tells the store what happened to the unit, because the
// store goes by the deadline. On nil it does nothing.
func (k *Kept) Refresh() {
	if k == nil {
		return
	}
	k.renewer.mu.Lock()
	defer k.renewer.mu.Unlock()
	if k.next != nil && !k.untaken {
		k.unit.Lease.Deadline = k.deadline
	}
}

// renew runs in the timer's goroutine.
func (r *Renewer) renew() {
	next := r.lease / renewTick
	if due, shadows, ctx, cancel := r.due(); len(due) > 0 {
		lost, err := r.storage.Renew(ctx, r.lease, shadows...)
		cancel()
		r.renewed(due, shadows, lost)
		if err != nil {
			next = r.lease / renewAgain
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = nil
	if r.ring.next == &r.ring {
		r.armed = false
		return
	}
	time.AfterFunc(next, r.renew)
}

// due gives the leases with less than two thirds left, and the copies that the
// store may write to.
func (r *Renewer) due() (due []*Kept, shadows []*txlog.Unit, ctx context.Context, cancel context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := r.ring.next; k != &r.ring; k = k.next {
		// If it passed, nobody may have taken it yet, but its owner may have
		// learnt already that it is lost.
		k.lost = k.lost || txlog.Lease{Deadline: k.deadline}.Over()
		if !k.lost && time.Until(k.deadline) <= r.lease*2/3 {
			due = append(due, k)
			shadows = append(shadows, k.shadow())
		}
	}
	if len(due) > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), max(r.lease/renewTimeout, shortest))
		r.stop = cancel
	}
	return due, shadows, ctx, cancel
}

// shadow is a copy of the unit for the store to write to, so that the unit
// itself stays its owner's alone.
func (k *Kept) shadow() *txlog.Unit {
	u := k.unit
	return &txlog.Unit{
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, Statements: u.Statements,
		Lease: txlog.Lease{Token: u.Lease.Token, Deadline: k.deadline},
	}
}

// renewed takes over the store's answer. After an error the store may have moved
// the deadlines of some.
func (r *Renewer) renewed(due []*Kept, shadows, lost []*txlog.Unit) {
	gone := make(map[*txlog.Unit]bool, len(lost))
	for _, u := range lost {
		gone[u] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range due {
		if gone[shadows[i]] {
			k.lost = true
		} else if !k.lost {
			k.untaken = k.untaken && shadows[i].Lease.Deadline.Equal(k.deadline)
			k.deadline = shadows[i].Lease.Deadline
		}
	}
}
