package entry

import (
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/journal"
)

// ClaimRequest selects the units to claim.
type ClaimRequest struct {
	// DataSource is the data source of the units.
	DataSource string
	// Limit is the maximum number of due units to look at; at least 1.
	Limit int
	// After restricts the claim to the units after this one, in the order of NextTry and id,
	// and to units with AtOnce. Only its NextTry and ID count. It must not be AtOnce itself.
	// nil means no restriction.
	After *Unit
	// Pick selects the units to claim among the due ones. The others stay as they are. Each
	// unit has only its first statement. Pick runs while their rows are locked, so it must be
	// quick. It must not change the units. nil selects all.
	Pick func(due []*Unit) []*Unit
	// MinAge excludes units that were added more recently.
	MinAge time.Duration
	// Lease is how long the claimer owns them; at least a millisecond.
	Lease time.Duration
}

// Verdict is the owner's account of a unit on giving it up.
type Verdict struct {
	// After is the time before the next claim.
	After time.Duration
	// CountTry adds one to Tries.
	CountTry bool
	// Contended is set if other transactions obstructed the last attempt; see
	// Unit.ContendedFrom.
	Contended bool
	// InDoubt is set if any attempt so far may have been applied.
	InDoubt bool
	// Err becomes LastError; empty keeps the old text.
	Err string
	// Park leaves the unit for an operator.
	Park bool
	// DataSource moves the unit to another data source, with no tries there yet: the next part
	// of a compensation (Unit.Undo) is there. Empty keeps the data source.
	DataSource string
	// Attempts are this owner's failed attempts. A storage keeps them for the operator if it
	// can; its failure to do so is not an error.
	Attempts []journal.Attempt
}

func (r *ClaimRequest) Validate() error {
	if r.Limit < 1 || r.DataSource == "" || r.Lease < MinLease {
		return fmt.Errorf("txlog: a claim of at most %d units of the data source %q for %v: it must be at least 1, of a data source with a name, for at least %v",
			r.Limit, r.DataSource, r.Lease, MinLease)
	}
	return nil
}

// Decision is an operator's decision about units.
type Decision uint8

// The decisions.
const (
	// DecideRetry and DecideDiscard do the same as txlog.Storage.Retry and Discard.
	DecideRetry Decision = iota + 1
	DecideDiscard
	// DecidePark leaves units for an operator.
	DecidePark
	// DecideSkip parks units and lets the units behind them go first. A unit that is not the
	// first under an order key is an ErrNotFirst. Once a later unit is delivered, the target
	// rejects the skipped one.
	DecideSkip
)

// Decided is the result of a decision.
type Decided struct {
	// Changed lists the ids of the units that it changed.
	Changed []string
	// Gone counts the units that were no longer in the log. Left counts the others without a
	// change: leased, rejected by check, or in a group (ErrGroup).
	Gone, Left int
}

// Amendment replaces one statement of a parked unit.
type Amendment struct {
	// No is the statement's position in the unit, from 0.
	No int
	// To holds the new text, and the parameters in the form of [EncodeParams].
	To Statement
	// Receipt is the new id of the unit's receipt. Set it if the old receipt proves that no
	// attempt was or will be applied: the unit is then no longer in doubt. Empty leaves both
	// unchanged.
	Receipt string
}

// State is the state of a unit, as far as the log knows.
type State string

const (
	// StateWaiting means that the unit is being delivered or waits for its delivery.
	StateWaiting State = "waiting"
	// StateParked means that the unit waits for an operator. A compensation has this state if a
	// part of its group is parked.
	StateParked State = "parked"
	// StateDelivered means that the job has delivered the unit, or that its group was
	// delivered. The log remembers it for 7 days.
	StateDelivered State = "delivered"
	// StateUnknown means that the log has no trace of the unit. It was never in the log, or its
	// own caller has removed it and knows more, or it ended too long ago.
	StateUnknown State = "unknown"
	// StateDiscarded means that an operator gave the unit up, or that its group is compensated.
	// The log remembers it for 7 days.
	StateDiscarded State = "discarded"
)
