package bedsql

import "sync/atomic"

// Counters count the writes of a wrapped driver by the answers to their callers. They do not count
// the job's later work. A local transaction counts once, by its COMMIT; the part of a staged soft
// transaction for one data source also counts once. Read them at any time, or share them between
// registrations to add them up.
type Counters struct {
	// Delivered counts writes that returned without error.
	Delivered atomic.Uint64
	// Refused counts writes that the database refused. It includes writes parked by a soft
	// transaction and the parts of a compensated group. It omits writes that bed itself refuses
	// before logging (ErrStaged, ErrPinned, an ended context).
	Refused atomic.Uint64
	// Pending counts writes left to the job or parked.
	Pending atomic.Uint64
	// NotLogged counts writes that were not accepted (OutcomeNotAccepted): most of them with
	// ErrNotLogged, others because of a deadlock at COMMIT.
	NotLogged atomic.Uint64
	// UnknownOutcome counts writes with an error of OutcomeUnknown.
	UnknownOutcome atomic.Uint64
	// AppliedUnlogged counts applied writes under LogAlongside whose entry could not be written.
	// They are in Delivered too.
	AppliedUnlogged atomic.Uint64
	// Unclassified counts attempts by the caller that ended with a database error on none of bed's
	// lists. They are retried; report the number.
	Unclassified atomic.Uint64
	// PassedThrough counts writes that ran unlogged because of session state, a transaction begun
	// or ended by a statement, several statements in one text, or a text dependent on its session.
	PassedThrough atomic.Uint64
	// Guarded counts writes that Config.Guard found not to be idempotent, refused ones included.
	Guarded atomic.Uint64
	// Unlogged counts writes that ran unlogged under Unlogged.
	Unlogged atomic.Uint64
}

// failed counts a write by the OutcomeOf its caller's error.
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
