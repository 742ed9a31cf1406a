package logdb

import (
	"context"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
)

// Session is a session of the application on the log's server.
type Session interface {
	// Exec returns the number of changed rows.
	Exec(ctx context.Context, text string) (int64, error)
	// Query returns the rows as texts; NULL is empty.
	Query(ctx context.Context, text string) ([][]string, error)
}

// Insert is a statement that writes rows of entries.
type Insert struct {
	SQL  string
	Args []any
	// Rows is how many rows it writes if its session reaches the log; else it writes none.
	Rows int
	// Find is a query for one of the rows, without parameters.
	Find string
	// Check is a query for the log, without a row in a session that does not reach it. It is empty
	// for a SQL with its own check.
	Check string
}

// Reach is what the sessions of a connector allow.
type Reach struct {
	// MaxPacket is max_allowed_packet; 0 means no limit.
	MaxPacket int
	// Isolation is the default level, in capitals ("READ COMMITTED").
	Isolation string
	// Snapshots is set if a write at a higher level than READ COMMITTED fails when its row has
	// changed since the transaction's first query.
	Snapshots bool
}

// SQL is a log in an SQL database, with the methods that only bed's own packages use: for
// bedsql.WithTx (Within to Holds), for the job (…Order) and for operators.
type SQL interface {
	// Journal holds operators' data beside the log, in tables of the same database. nil for a
	// storage that was never opened.
	Journal() *journal.Journal
	// Within returns the statements that write units as rows of the open local transaction of a
	// session, to be run there just before its COMMIT. It first issues the numbers of their order
	// keys in that transaction, which then holds the keys. The entries have no lease, belong to the
	// units' Lease.Token, are due at once whatever their age (AtOnce), and are in doubt only if they
	// leave a receipt. most is the session's max_allowed_packet; 0 means no limit.
	Within(ctx context.Context, s Session, most int, units ...*entry.Unit) ([]Insert, error)
	// Fits returns an error for a statement that no transaction of a session with the limit most can
	// write: its row may take a quarter of the limit.
	Fits(s *entry.Statement, most int) error
	// Elsewhere returns an error of Within's statements for the caller; written is how many rows
	// the statement has written instead of Rows, or negative. It matches txlog.ErrLogElsewhere if
	// the session does not reach the log.
	Elsewhere(err error, written int64) error
	// Reach checks on a session of the same connector, outside of any transaction, for the log's
	// tables and the right to write to them. It matches txlog.ErrLogElsewhere if the session does
	// not reach the log.
	Reach(ctx context.Context, s Session) (Reach, error)
	// Holds reports whether one of the units with these ids is in the log, as the open local
	// transaction of a session sees it. The errors are as for Reach.
	Holds(ctx context.Context, s Session, ids []string) (bool, error)
	// HealOrder frees the units behind an entry that is no longer in the log, because it was
	// deleted by hand or by a version without order keys. Each call checks some order keys after
	// the hash after. next is the hash to continue from, empty at the end. It leaves a locked
	// key for the next time.
	HealOrder(ctx context.Context, after string) (next string, healed int, err error)
	// PurgeOrder deletes the rows of order keys that are idle and have issued no number for
	// keep. Each call checks some order keys after the hash after. next is the hash to continue
	// from, empty at the end. A key that returns gets higher numbers than before, unless the
	// log's clock was set back by more than keep.
	PurgeOrder(ctx context.Context, keep time.Duration, after string) (next string, purged int, err error)
	// Units reads the units with these ids, which are ids of first rows, in the order of their
	// ids. It omits units that are not in the log.
	Units(ctx context.Context, ids []string) ([]*entry.Unit, error)
	// Decide carries out a decision for the units with these ids (of their first rows), in one
	// local transaction. With check, it changes only some of them. It skips missing units, units
	// in delivery and units protected by ErrGroup, and calls check for the others with their rows
	// locked. Without check, it changes all of them or none, with ErrNotFound, ErrLeased and
	// ErrGroup as in txlog.Storage.Discard.
	// also runs further statements in the same transaction before any change, and must insert a
	// row with a unique key. If COMMIT gets no answer, Decide repeats the decision: the row is
	// there if it was carried out. Without also, a missing unit proves that a DecideDiscard was
	// carried out. Decide returns ErrUnconfirmed if the outcome stays unknown.
	Decide(ctx context.Context, d entry.Decision, ids []string, check func(*entry.Unit) bool, also func(d entry.Decided, exec func(query string, args ...any) error) error) (entry.Decided, error)
	// Amend carries out amendments for the units with these ids (of their first rows), in one
	// local transaction, and leaves the units parked. fits gets a locked unit and returns the
	// reason against its amendment, or nil. With some, Amend leaves alone the units that fits
	// rejects; else there is one unit, and fits' error is Amend's. also and the errors are as
	// for Decide.
	Amend(ctx context.Context, as map[string]entry.Amendment, some bool, fits func(*entry.Unit) error, also func(d entry.Decided, exec func(query string, args ...any) error) error) (entry.Decided, error)
	// CompensateAlso is txlog.Storage.Compensate for an operator; also is as for Decide.
	CompensateAlso(ctx context.Context, id string, lease time.Duration, cause string, also func(exec func(query string, args ...any) error) error) (*entry.Unit, error)
}

// Of returns the SQL of a storage that is, embeds, or wraps (by a method Unwrap that returns a
// txlog.Storage) a *txlog.SQLStorage other than nil; nil for any other storage. Package txlog sets
// it.
var Of func(storage any) SQL

// Journal returns the journal of a storage (see Of); nil without one.
func Journal(storage any) *journal.Journal {
	log := Of(storage)
	if log == nil {
		return nil
	}
	return log.Journal()
}
