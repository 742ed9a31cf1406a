// Package order delivers writes under order keys: each in its turn.
package order

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// looks is the longest pause between two looks at whether a unit's turn has come.
const looks = 100 * time.Millisecond

// Turn is a Deliverer for units under order keys.
type Turn struct {
	*besteffort.Deliverer
	// Key is the order key of a unit that has no others; empty for units with theirs.
	Key string
	// Wait is how long Deliver waits for the turn of a unit. A unit that must not wait, because it
	// holds locks, has 0.
	Wait time.Duration
}

// Log is [besteffort.Deliverer.Log] for units of which some may have order keys, with Keep for
// those whose turn it is.
func Log(ctx context.Context, d *besteffort.Deliverer, ws ...*besteffort.InFlight) []error {
	for _, w := range ws {
		ordered(w)
	}
	if errs := d.Log(ctx, ws...); errs != nil {
		return errs
	}
	for _, w := range ws {
		keep(d, w)
	}
	return nil
}

// ordered sets the policy of a unit that may have order keys. Add alone knows its place, and its
// successor's turn comes when it is removed.
func ordered(w *besteffort.InFlight) {
	if len(w.Unit.Order) > 0 {
		w.Logging, w.RemoveLater, w.Strict = besteffort.LogBefore, false, true
	}
}

// keep keeps the lease of a unit, unless the unit waits: it has none until its turn comes.
func keep(d *besteffort.Deliverer, w *besteffort.InFlight) {
	if w.Unit.Behind == "" {
		d.Keep(w)
	}
}

// Deliver is [besteffort.Deliverer.Deliver].
func (t Turn) Deliver(ctx context.Context, w *besteffort.InFlight) error {
	w.Unit.Order = With(w.Unit.Order, t.Key)
	ordered(w)
	if err := t.Accept(ctx, w); err != nil {
		return err
	}
	keep(t.Deliverer, w)
	return t.DeliverLogged(ctx, w)
}

// DeliverLogged is [besteffort.Deliverer.DeliverLogged].
func (t Turn) DeliverLogged(ctx context.Context, w *besteffort.InFlight) error {
	if w.Unit.Behind != "" {
		if err := t.wait(ctx, w); err != nil {
			return t.Answer(w, err)
		}
	}
	return t.Deliverer.DeliverLogged(ctx, w)
}

// wait waits until a unit's predecessor under its order key is done, for t.Wait at most, and then
// takes the unit's lease. After an error the unit is left to the job, which delivers it in its
// turn.
func (t Turn) wait(ctx context.Context, w *besteffort.InFlight) error {
	if w.Unit.NotReplayable != "" {
		return t.withdraw(ctx, w)
	}
	if t.Wait <= 0 {
		return w.Leave(behind(w.Unit))
	}
	waiting, cancel := context.WithTimeout(ctx, t.Wait)
	defer cancel()
	for pause := jitter.BackOff(2*time.Millisecond, looks); jitter.Sleep(waiting, pause.NextBackOff()); {
		u, err := t.Storage.Get(waiting, w.Unit.ID)
		switch {
		case errors.Is(err, txlog.ErrNotFound):
			return w.Leave(fmt.Errorf("the job has taken it in its turn: %w", err))
		case err != nil:
			continue
		case u.Behind != "":
			w.Unit.Behind = u.Behind
			continue
		}
		return t.begin(ctx, w)
	}
	return w.Leave(behind(w.Unit))
}

// begin takes the lease of a unit whose turn has come.
func (t Turn) begin(ctx context.Context, w *besteffort.InFlight) error {
	own, cancel := t.Own(ctx)
	defer cancel()
	switch lost, err := t.Storage.Renew(own, t.Lease, w.Unit); {
	case err != nil:
		return w.Leave(err)
	case len(lost) > 0:
		return w.Leave(fmt.Errorf("the job has taken it in its turn: %w", txlog.ErrLeaseLost))
	}
	w.Unit.Behind, w.Unit.AtOnce = "", false
	t.Keep(w)
	return nil
}

// withdraw removes the entry of a unit that would have to wait, and cannot be run later. It was
// not sent.
func (t Turn) withdraw(ctx context.Context, w *besteffort.InFlight) error {
	cause := fmt.Errorf("it cannot wait, for it must not be run again (%s): %w", w.Unit.NotReplayable, behind(w.Unit))
	switch err := t.Removals.Once(ctx, &removal.Unit{Entry: w.Unit}); {
	case err == nil:
		return &listener.NotLoggedError{DataSource: w.Unit.DataSource, Cause: cause}
	case errors.Is(err, txlog.ErrInDoubt):
		return w.Undecided(cause, err)
	default:
		return w.Leave(fmt.Errorf("%w; and its entry could not be removed: %w", cause, err))
	}
}

// behind is why a unit waits.
func behind(u *entry.Unit) error {
	b := &listener.BehindError{Entry: u.Behind}
	if len(u.Order) > 0 {
		b.Key = u.Order[0].Key
	}
	return b
}

// With returns order with a key added, unless the key is empty or present.
func With(order []entry.Order, key string) []entry.Order {
	if key == "" || slices.ContainsFunc(order, func(o entry.Order) bool { return o.Key == key }) {
		return order
	}
	return append(slices.Clip(order), entry.Order{Key: key})
}

// Keys are the order keys of a log, as a job looks after them.
type Keys struct {
	txlog.Storage
	// Timeout bounds a step in the log.
	Timeout time.Duration
	Logger  logrus.FieldLogger

	mu     sync.Mutex
	healed string // the last key that Heal has checked
}

// Heal frees units behind entries that were deleted by hand, for some order keys at a time. It
// reports whether there are more.
func (k *Keys) Heal(ctx context.Context) (more bool) {
	log := logdb.Of(k.Storage)
	if log == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	next, healed, err := log.HealOrder(ctx, k.healed)
	if err != nil {
		k.Logger.WithError(err).Debug("order keys could not be looked at")
		return false
	}
	k.healed = next
	if healed > 0 {
		k.Logger.WithField("order_keys", healed).Warn("the entry that others waited for was deleted from the log: what waited goes on")
	}
	return next != ""
}

// Purge erases the rows of idle order keys, until end: on the data source, in the places of its
// receipts, and in the log.
func (k *Keys) Purge(ctx context.Context, d *dialect.Dialect, conn driver.Conn, places []attempt.Receipts, end time.Time) error {
	for _, at := range places {
		for after, more := "", true; more && time.Now().Before(end); more = after != "" {
			var err error
			if after, err = attempt.PurgeOrder(ctx, d, conn, at, after, k.Storage.Missing); err != nil {
				return attempt.ReceiptRights(ctx, d, conn, at, err)
			}
		}
	}
	log := logdb.Of(k.Storage)
	for after, more := "", log != nil; more && time.Now().Before(end); more = after != "" {
		ctx, cancel := context.WithTimeout(ctx, k.Timeout)
		var err error
		after, _, err = log.PurgeOrder(ctx, places[0].Retention, after)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
