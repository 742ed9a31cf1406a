package bedsql

import "github.com/bedsql/bed/listener"

// Outcome is the meaning of an error of this package for the caller of a write, and for the answer
// to the caller's own client.
type Outcome = listener.Outcome

// The outcomes, as package listener describes them.
const (
	OutcomeDelivered     = listener.OutcomeDelivered
	OutcomeAccepted      = listener.OutcomeAccepted
	OutcomeRefused       = listener.OutcomeRefused
	OutcomeNotAccepted   = listener.OutcomeNotAccepted
	OutcomePartlyRefused = listener.OutcomePartlyRefused
	OutcomeCompensated   = listener.OutcomeCompensated
	OutcomeUnknown       = listener.OutcomeUnknown
)

// OutcomeOf returns the meaning of an error of a write, a Commit or an End. It looks through
// wrapped errors and errors.Join. Of several outcomes it returns the sum, OutcomePartlyRefused if
// some writes were applied and others were not. An unknown error is OutcomeUnknown.
//
// An error of a driver has the meaning from the list of its database. A refusal is OutcomeRefused.
// An answer that may be different later (a deadlock) or a failed dial is OutcomeNotAccepted. A
// broken connection is OutcomeUnknown. So an error of a statement inside a local transaction may
// be OutcomeUnknown, although nothing of the transaction is applied before its Commit.
//
// A bare context error means that nothing was applied. (database/sql leaves one gap. If the
// context ends after the write has returned its rows and before they are scanned, QueryRow reports
// the context's error for a delivered write. The error of Query belongs to the write alone.)
func OutcomeOf(err error) Outcome { return listener.OutcomeOf(err) }

// becauseError is an error of this package with its reason. errors.Is finds the reason, but it
// does not change the outcome.
type becauseError struct{ what, why error }

func because(what, why error) error { return &becauseError{what, why} }

func (e *becauseError) Error() string { return e.what.Error() + ": " + e.why.Error() }

func (e *becauseError) Outcome() Outcome { return OutcomeOf(e.what) }

func (e *becauseError) Unwrap() []error { return []error{e.what, e.why} }

// Outcomes are the outcomes of the writes; [OutcomeOf] returns their sum.
func (e *EndError) Outcomes() (all []Outcome) {
	for _, err := range e.Errors {
		all = append(all, OutcomeOf(err))
	}
	if len(e.Delivered) > 0 {
		all = append(all, OutcomeDelivered)
	}
	return all
}

// Outcome is OutcomeRefused.
func (e *LogElsewhereError) Outcome() Outcome { return OutcomeRefused }
