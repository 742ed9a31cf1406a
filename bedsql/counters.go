package bedsql

import "sync/atomic"

// Counters count what happened to a wrapped driver's writes by the answer that
// their callers got: what the job makes of them later is not counted here. A local transaction
// counts once, by its COMMIT; the part of a staged soft transaction for one data source
// once. They may be read at any time, and shared between registrations to add them up.
type Counters struct {
	// Delivered counts writes that returned without error.
	Delivered atomic.Uint64
	// Refused counts writes that the database refused, those that a soft transaction
	// parks and the parts of a group that is undone included.
	// What bed itself turns away before it logs anything (ErrStaged, ErrPinned, a
	// context that has ended) is not counted.
	Refused atomic.Uint64
	// Pending counts writes that were left to the job or parked.
	Pending atomic.Uint64
	// NotLogged counts writes that were not accepted (OutcomeNotAccepted): most of them
	// with ErrNotLogged, others because of a deadlock at COMMIT.
	NotLogged atomic.Uint64
	// UnknownOutcome counts writes whose error is OutcomeUnknown.
	UnknownOutcome atomic.Uint64
	// AppliedUnlogged counts writes under LogAlongside that were applied although
	// their entry could not be written. They are in Delivered too.
	AppliedUnlogged atomic.Uint64
	// Unclassified counts attempts, by the caller, that ended with an error of the database
	// that none of bed's lists names. They are retried; report the number.
	Unclassified atomic.Uint64
	// PassedThrough counts writes that ran unlogged because of session state, a
	// transaction that a statement began or ended, several statements in one text, or
	// a text that depends on its session.
	PassedThrough atomic.Uint64
	// Guarded counts writes that Config.Guard found not to be idempotent, refused ones
	// included.
	Guarded atomic.Uint64
	// Unlogged counts writes that ran unlogged under Unlogged.
	Unlogged atomic.Uint64
}

// failed counts a write by the OutcomeOf the error that its caller gets.
func (n *Counters) failed(err error) {
	switch OutcomeOf(err) {
	case OutcomeAccepted:
		n.Pending.Add(1)
	case OutcomeNotAccepted:
		n.NotLogged.Add(1)
	case OutcomeUnknown:
		n.UnknownOutcome.Add(1)
	default:
		n.Refused.Add(1)
	}
}
