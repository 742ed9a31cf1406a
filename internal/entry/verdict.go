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
