package group

import "github.com/bedsql/bed/internal/attempt"

// Part is what is known of a part of a compensable group.
type Part uint8

const (
	Waiting Part = iota // its entry waits in the log, and its receipt was not looked up
	Delivered
	Refused // or discarded
	Applied // its receipt is there
	Voided  // its receipt says that it never will be applied
	Missing // it has no receipt
	Unasked // its receipt could not be looked up
)

// Known is what is known of a compensable group.
type Known struct {
	Parts []Part
	// Over means that a part without a receipt will not be tried again: the group is overdue, or
	// the part is refused.
	Over bool
	// Open means that other parts may not be delivered yet.
	Open bool
	// Compensating means that others have started the compensation.
	Compensating bool
	// Gone means that the log has no entry of the group, and no memory of it.
	Gone bool
}

// Decision is what has to be done with a group. The log is the arbiter: there Complete and
// Compensate exclude each other.
type Decision uint8

const (
	LeaveOpen Decision = iota // others go on with it
	AskAgain                  // the receipts that are not known decide
	Complete
	Compensate
)

// Decide decides whether the group is complete or is to be compensated.
func (k Known) Decide() Decision {
	var has [Unasked + 1]bool
	for _, p := range k.Parts {
		has[p] = true
	}
	switch {
	case k.Compensating || has[Voided] || has[Refused]:
		return Compensate
	case k.Gone && has[Applied]: // a part without a receipt was rolled back to a savepoint
		return Complete
	case k.Gone:
		return AskAgain
	case k.Over && has[Missing]:
		return Compensate
	case k.Over && (has[Waiting] || has[Unasked]):
		return AskAgain
	case k.Open || has[Waiting] || has[Applied] || has[Missing] || has[Unasked]:
		return LeaveOpen // entries are left in the log
	}
	return Complete
}

// receipt is what the lookup of a part's receipt shows.
func receipt(met attempt.Outcome) Part {
	switch {
	case met.Voided:
		return Voided
	case met.Found:
		return Applied
	case met.Unasked():
		return Unasked
	}
	return Missing
}
