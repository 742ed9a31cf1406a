// Package lease keeps the leases of units during the work on them.
package lease

import (
	"context"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

// Renew is a log's method: txlog.Storage.Renew.
type Renew func(ctx context.Context, lease time.Duration, units ...*entry.Unit) (lost []*entry.Unit, err error)

// Renewer renews the leases of units during the work on them. A unit that is kept for less
// than a third of its lease costs only a place in a map; a goroutine exists only while
// renewals are being sent. It is safe for concurrent use. It needs no closing: it is idle
// without kept leases.
type Renewer struct {
	extend Renew
	lease  time.Duration

	mu    sync.Mutex
	kept  map[*Kept]bool
	armed bool // a timer is set, or renewals are being sent
	stop  context.CancelFunc
}

// Kept is the lease of a unit while it is renewed.
type Kept struct {
	renewer  *Renewer
	unit     *entry.Unit
	deadline time.Time
	lost     bool
	// untaken is set before the log knows of a lease; the unit's deadline then stays zero. The
	// first renewal takes the lease.
	untaken bool
}

// The renewer's times, as fractions of the lease.
const (
	renewTick    = 3  // looks every third
	renewTimeout = 3  // one call may take a third
	renewAgain   = 12 // after a failure it looks sooner
)

// shortest bounds a lease: the log's clock counts milliseconds.
const shortest = time.Millisecond

// NewRenewer returns a renewer that extends leases to lease from the moment of each renewal.
func NewRenewer(extend Renew, lease time.Duration) *Renewer {
	return &Renewer{extend: extend, lease: max(lease, shortest), kept: map[*Kept]bool{}}
}

// Keep keeps the lease of u from running out until it is released. The caller must own u
// under u.Lease. Until then u's ID, TransactionID, DataSource, Lease and Statements must not
// be written. A unit is kept once at a time.
func (r *Renewer) Keep(u *entry.Unit) *Kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &Kept{renewer: r, unit: u, deadline: u.Lease.Deadline}
	r.kept[k] = true
	if !r.armed {
		r.armed = true
		time.AfterFunc(r.lease/renewTick, r.renew)
	}
	return k
}

// KeepUntaken is Keep for a unit that belongs to its token without a lease: until the first
// renewal, which takes one, any claimer may take the unit. It counts as lost after the time
// until, unless it is renewed before.
func (r *Renewer) KeepUntaken(u *entry.Unit, until time.Time) *Kept {
	u.Lease.Deadline = until
	k := r.Keep(u)
	r.mu.Lock()
	defer r.mu.Unlock()
	k.untaken, u.Lease.Deadline = true, time.Time{}
	return k
}

// Release ends the renewal and updates the unit's deadline. It may be called more than once,
// and on nil.
func (k *Kept) Release() {
	if k == nil {
		return
	}
	r := k.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.kept[k] {
		return
	}
	if !k.untaken {
		k.unit.Lease.Deadline = k.deadline
	}
	delete(r.kept, k)
	if len(r.kept) == 0 && r.stop != nil {
		r.stop()
	}
}

// Lost reports whether the unit may have another owner by now: its lease was found taken, or
// its deadline passed without a renewal, perhaps because this process or its machine stood
// still. A lost lease stays lost. Its owner checks before it acts. A nil lease is never
// lost.
func (k *Kept) Lost() bool {
	if k == nil {
		return false
	}
	k.renewer.mu.Lock()
	defer k.renewer.mu.Unlock()
	k.lost = k.lost || entry.Lease{Deadline: k.deadline}.Over()
	return k.lost
}

// Refresh updates the unit's deadline after the renewals so far. The owner calls it before
// reporting the unit's outcome to the store, which relies on the deadline. On nil it has no
// effect.
func (k *Kept) Refresh() {
	if k == nil {
		return
	}
	k.renewer.mu.Lock()
	defer k.renewer.mu.Unlock()
	if k.renewer.kept[k] && !k.untaken {
		k.unit.Lease.Deadline = k.deadline
	}
}

// renew runs in the timer's goroutine.
func (r *Renewer) renew() {
	next := r.lease / renewTick
	if due, shadows, ctx, cancel := r.due(); len(due) > 0 {
		lost, err := r.extend(ctx, r.lease, shadows...)
		cancel()
		r.renewed(due, shadows, lost)
		if err != nil {
			next = r.lease / renewAgain
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = nil
	if len(r.kept) == 0 {
		r.armed = false
		return
	}
	time.AfterFunc(next, r.renew)
}

// due returns the leases with less than two thirds left, and copies for the store to write
// to.
func (r *Renewer) due() (due []*Kept, shadows []*entry.Unit, ctx context.Context, cancel context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.kept {
		// After the deadline the unit may still be free, but its owner may already know that it is
		// lost.
		k.lost = k.lost || entry.Lease{Deadline: k.deadline}.Over()
		if !k.lost && time.Until(k.deadline) <= r.lease*2/3 {
			due = append(due, k)
			u := k.unit // stays its owner's alone
			shadows = append(shadows, &entry.Unit{
				ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, Statements: u.Statements,
				Lease: entry.Lease{Token: u.Lease.Token, Deadline: k.deadline},
			})
		}
	}
	if len(due) > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), max(r.lease/renewTimeout, shortest))
		r.stop = cancel
	}
	return due, shadows, ctx, cancel
}

// renewed applies the store's answer. After an error the store may have moved the deadlines
// of some.
func (r *Renewer) renewed(due []*Kept, shadows, lost []*entry.Unit) {
	gone := make(map[*entry.Unit]bool, len(lost))
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
