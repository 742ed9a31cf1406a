package order

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/txlog"
)

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
