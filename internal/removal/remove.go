package removal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/txlog"
)

// Unit is a delivered unit. It belongs to the queue until it is Ended.
type Unit struct {
	// Entry is what the log holds of it, and Lease its lease; nil without an entry.
	Entry *txlog.Unit
	Lease *lease.Kept
	// Certain: every attempt ended with a definite answer, and none met its receipt.
	Certain bool
	// Ended is called once, when its entry is gone or left to the end of its lease,
	// or it is lost: somebody else owns it; may be nil.
	Ended func(lost bool)
	// inDoubt: a removal gave no answer.
	inDoubt bool
}

// fate is what became of the entry of a delivered unit.
type fate uint8

const (
	// removed: it is gone.
	removed fate = iota
	// left: it stays until its lease is over.
	left
	// lost: somebody else owns it.
	lost
)

// missing is the fate of an entry that was not there to be removed: somebody else
// took it. After a removal without an answer, as long as the lease lasts, it was
// that one's doing: nobody else could.
func (u *Unit) missing() fate {
	if u.inDoubt && !u.Entry.Lease.Over() {
		return removed
	}
	return lost
}

// letGo ends a unit. It lets go of the receipt as well if the entry is gone and
// every attempt ended with a definite answer to its owner, who owned the entry all
// the time. Any other receipt stays for its retention: an attempt may still come,
// or the entry come back.
func (q *Queue) letGo(u *Unit, how fate) {
	u.Lease.Release()
	if u.Ended != nil {
		u.Ended(how == lost)
	}
	if e := u.Entry; how == removed && e.Receipt != "" && e.Fingerprint == "" && !e.AddRepeated && u.Certain {
		q.spent(Settings{e.Settings, e.SettingsOlder}, e.Receipt)
	}
}

// End ends a delivered unit that has no entry, and never will.
func (q *Queue) End(u *Unit) { q.letGo(u, removed) }

// Now ends a delivered unit: it removes the entry on ctx, and repeats the removal
// behind the caller if that fails.
func (q *Queue) Now(ctx context.Context, u *Unit) {
	err := q.Once(ctx, u)
	switch {
	case err == nil:
		q.letGo(u, removed)
		return
	case errors.Is(err, txlog.ErrLeaseLost):
		q.letGo(u, u.missing())
		return
	}
	u.inDoubt = u.inDoubt || errors.Is(err, txlog.ErrInDoubt)
	q.cfg.Failed([]*Unit{u}, err, true)
	if !q.Go(func() { q.repeat([]*Unit{u}, err) }) {
		q.letGo(u, left)
	}
}

// Once removes the entry of a unit on ctx, and on a context of its own when that
// one has ended, and does not end the unit. A log that does not answer must not
// hold the caller up whose write is done.
func (q *Queue) Once(ctx context.Context, u *Unit) error {
	u.Lease.Refresh()
	var first error
	if ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
		first = q.cfg.Storage.Remove(bounded, u.Entry)
		cancel()
		if first == nil || ctx.Err() == nil {
			return first
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.cfg.Timeout)
	defer cancel()
	err := q.cfg.Storage.Remove(ctx, u.Entry)
	if err == nil || !errors.Is(first, txlog.ErrInDoubt) {
		return err
	}
	if errors.Is(err, txlog.ErrLeaseLost) && !u.Entry.Lease.Over() {
		return nil // the first one removed it: nobody else could
	}
	return fmt.Errorf("%w; and then: %w", first, err)
}

// Chase looks, behind the caller, for the entry of a delivered unit whose write to
// the log was not answered: the entry may be there, may come late, or may never
// come. It tries to remove it until that succeeds or the lease under which it was
// to be written is over, or the queue is closed: one try is made in any case. Without
// success it calls missed. The receipt stays either way.
func (q *Queue) Chase(u *Unit, missed func()) {
	lease := u.Entry.Lease
	// With a deadline the log would take a removal whose answer was lost for done
	// when its repetition finds no entry (Storage.Remove). Here there may be none
	// because it has not come yet.
	u.Entry.Lease.Deadline = time.Time{}
	search := func() {
		pause := q.cfg.Pause()
		for open := true; open && !lease.Over(); {
			if q.Once(context.WithoutCancel(q.ctx), u) == nil {
				return
			}
			open = jitter.Sleep(q.open, pause.NextBackOff())
		}
		missed()
	}
	if !q.Go(search) {
		search()
	}
}

// byOwner parts what was claimed at different times: units of one owner are
// removed by a cheaper statement.
func byOwner(batch []*Unit) (portions [][]*Unit) {
	token := func(u *Unit) string { return u.Entry.Lease.Token }
	slices.SortStableFunc(batch, func(a, b *Unit) int { return cmp.Compare(token(a), token(b)) })
	for begin, i := 0, 1; i <= len(batch); i++ {
		if i == len(batch) || token(batch[i]) != token(batch[begin]) {
			portions = append(portions, batch[begin:i])
			begin = i
		}
	}
	return portions
}

// repeat removes units together, again and again while their leases are surely
// kept. failed is the error of a removal that came before.
func (q *Queue) repeat(units []*Unit, failed error) {
	defer func() { // also after a panic
		for _, u := range units {
			q.letGo(u, left)
		}
	}()
	for begun, pause := time.Now(), q.cfg.Pause(); len(units) > 0; {
		if failed == nil {
			if failed = q.together(units); failed == nil {
				units = nil
			}
			continue
		}
		rest := pause.NextBackOff()
		over := errors.Is(failed, txlog.ErrLeaseLost) || // of a storage that does not say whose
			q.cfg.HoldAt > 0 && time.Since(begun)+rest > q.cfg.HoldFor || !jitter.Sleep(q.ctx, rest)
		if units = q.kept(units, failed); over && len(units) > 0 {
			q.cfg.Failed(units, failed, false)
			return
		}
		failed = nil
	}
}

// kept gives the units whose leases are kept, and ends the others, whose removal
// has failed.
func (q *Queue) kept(units []*Unit, failed error) (kept []*Unit) {
	for _, u := range units {
		if !u.Lease.Lost() {
			kept = append(kept, u)
			continue
		}
		q.cfg.Failed([]*Unit{u}, failed, false)
		q.letGo(u, lost)
	}
	return kept
}

// together removes units in one write, and ends them. After an error none of
// them is ended, and some may be removed.
func (q *Queue) together(units []*Unit) error {
	entries := make([]*txlog.Unit, len(units))
	for i, u := range units {
		u.Lease.Refresh()
		entries[i] = u.Entry
	}
	ctx, cancel := context.WithTimeout(q.ctx, q.cfg.Timeout)
	defer cancel()
	err := q.cfg.Storage.Remove(ctx, entries...)
	var some *txlog.LeaseLostError
	all := len(units) == 1 && errors.Is(err, txlog.ErrLeaseLost)
	if err != nil && !all && !errors.As(err, &some) {
		for _, u := range units {
			u.inDoubt = u.inDoubt || errors.Is(err, txlog.ErrInDoubt)
		}
		return err
	}
	for i, u := range units {
		if all || some != nil && slices.Contains(some.IDs, entries[i].ID) {
			q.letGo(u, u.missing())
		} else {
			q.letGo(u, removed)
		}
	}
	return nil
}
