package entry

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
