package bedsql

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
)

var (
	// ErrOvertaken is matched by the error of a write under an order key after delivery of a later
	// one. An operator had this one skipped, or its writer stalled for longer than its lease. It
	// is not applied.
	ErrOvertaken = dialect.ErrOvertaken
	// ErrOrderUnusable is matched by the error of a write that cannot be kept in the order
	// of its key. It was not sent.
	ErrOrderUnusable = errors.New("bed: the order key cannot be used for this write")
)

// BehindError is the cause of an ErrPending that waits for another entry under its order key. Its
// fields:
//
//	Entry string // the first entry under the key, for which it waits
//	Key   string // the hash of the key
type BehindError = listener.BehindError

// WithOrderKey returns a context under which writes to one data source take effect in the order of
// their acceptance, that is, of the commits of their entries. Every data source has an order of
// its own, and so has every transaction log. The writes are delivered exactly once, whatever
// Config.Guarantee is, and their entries are written before they are sent, whatever Config.Logging
// is.
//
// While an earlier write under the key is in the log (pending, parked or just being delivered), a
// later one is accepted behind it and not sent. Its caller gets ErrPending with a *BehindError
// inside, at once or after Config.OrderWait, and the job delivers it in its turn. A parked entry
// holds up only its own key, until an operator retries, discards or skips it (bed-job skip). The
// target refuses a write that arrives after delivery of a later one: ErrOvertaken.
//
// In a local transaction the key must be in the context of BeginTx. It then belongs to the writes
// under that context or under the context of a statement, and its order is the order of the
// COMMITs. A transaction that would have to wait is rolled back. Its writes are delivered later if
// they can be run again; otherwise its Commit returns ErrNotLogged. In a staged soft transaction
// and one made by WithTx, the writes for one data source are delivered together, in their turn
// under all of their keys. WithTx locks its keys only in COMMIT, which waits for each at most a
// second, or on MySQL the server's own time, and then returns ErrNotLogged and rolls back. Above
// READ COMMITTED a write under WithTx is ErrOrderUnusable on PostgreSQL, and where
// innodb_snapshot_isolation is on. The own rows of a transaction of WithTx, or of an HTTP
// request (package bedhttp), commit without an entry: under a key they are ErrOrderUnusable.
//
// Messages (package message) are published in the order of their key. A broker does not reject
// late messages: an earlier one may arrive twice, and the retry of a skipped one is published.
//
// The log keeps only a hash of the key; a message carries the key itself. An empty key is an error
// of the write, and so is a write that would run unlogged. Under Unlogged the key has no effect.
func WithOrderKey(ctx context.Context, key string) context.Context {
	return scoped(ctx, func(s *scope) { s.order, s.ordered = key, true })
}

// disordered refuses a write that cannot be kept in the order of its key.
func disordered(why string) error { return fmt.Errorf("%w: %s", ErrOrderUnusable, why) }

// orderKey returns the key of a scope for c's data source; empty without a key.
func orderKey(c *connector, under scope) (string, error) {
	switch {
	case !under.ordered || under.unlogged:
		return "", nil
	case under.order == "":
		return "", disordered("it is empty")
	}
	return fmt.Sprintf("%s%x", entry.OrderPrefix, sha256.Sum256(entry.Apart(c.receipts.LogIdentity, c.target.DataSource, under.order))), nil
}
