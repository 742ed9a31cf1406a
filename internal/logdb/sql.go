package logdb

import (
	"context"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
)

// SQL is a log in an SQL database, with the methods that only bed's own packages use: for
// bedsql.WithTx (…Within), for the job (…Order) and for operators.
type SQL interface {
	// Journal holds operators' data beside the log, in tables of the same database. nil for a
	// storage that was never opened.
	Journal() *journal.Journal
	// AddWithin writes statement n (from 0) of u as a row of an application's own transaction tx in
	// the log's database. The row commits with it, or not at all. AddWithin returns the number of
	// u's statements in the transaction. A number other than n+1 means that a savepoint was rolled
	// back: later statements are gone, and n was not written. The entry has no lease, belongs to
	// u.Lease.Token, is due at once whatever its age (AtOnce), and is in doubt only if it leaves a
	// receipt. With prove, the statement also checks that the transaction reaches this log;
	// txlog.ErrLogElsewhere if not. After any other error n is not written, and the transaction is
	// usable unless the database has ended it. Make one call at a time for each tx. ctx is passed to
	// tx, and ends the wait for it. For a compensation (Unit.Undo), each call writes all its parts.
	AddWithin(ctx context.Context, tx entry.DBTX, u *entry.Unit, n int, prove bool) (there int, err error)
	// NoteWithin rewrites the parts of the compensation u after AddWithin wrote a statement of
	// it and a part was added. noted is false if tx no longer holds a statement of u.
	NoteWithin(ctx context.Context, tx entry.DBTX, u *entry.Unit) (noted bool, err error)
	// MarkWithin makes u, whose statements AddWithin wrote, a unit of a compensable group: it
	// writes the Part of the statements, the Receipt and CompensateAfter. Or it makes u wait for the
	// units in its After.
	MarkWithin(ctx context.Context, tx entry.DBTX, u *entry.Unit) error
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
