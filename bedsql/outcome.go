package bedsql

import "github.com/bedsql/bed/listener"

// Outcome is what an error of this package means for the caller of a write, and so
// what the caller may answer its own client.
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

// OutcomeOf says what err, which a write, a Commit or an End returned, means for its
// caller. Wrapped errors and errors.Join are looked through: of several outcomes the
// whole is given, OutcomePartlyRefused where they differ in what was applied. An error
// about which nothing is known is OutcomeUnknown.
//
// An error of a driver means what the errors of its database are listed to mean: a
// refusal is OutcomeRefused, an answer that may be different later (a deadlock) or a
// failed dial OutcomeNotAccepted, a broken connection OutcomeUnknown. So an error of a
// statement inside a local transaction may be OutcomeUnknown, although nothing of the
// transaction is applied before its Commit.
//
// A bare context error means that nothing was applied. (database/sql leaves one gap:
// if the context ends after the write has returned its rows and before they are
// scanned, QueryRow reports the context's error of a write that is delivered. The
// error of Query is the write's alone.)
func OutcomeOf(err error) Outcome { return listener.OutcomeOf(err) }

// becauseError is an error of this package with its reason, which errors.Is finds
// and which does not change its outcome.
type becauseError struct{ what, why error }

func because(what, why error) error { return &becauseError{what, why} }

func (e *becauseError) Error() string { return e.what.Error() + ": " + e.why.Error() }

// Outcome is that of what.
func (e *becauseError) Outcome() Outcome { return OutcomeOf(e.what) }

// Unwrap gives both.
func (e *becauseError) Unwrap() []error { return []error{e.what, e.why} }

// Outcome is OutcomeOf what End reports.
func (e *EndError) Outcome() Outcome {
	all := make([]Outcome, 0, len(e.Errors)+1)
	for _, err := range e.Errors {
		all = append(all, OutcomeOf(err))
	}
	if len(e.Delivered) > 0 {
		all = append(all, OutcomeDelivered)
	}
	return listener.Together(all...)
}

// Outcome is OutcomeRefused.
func (e *LogElsewhereError) Outcome() Outcome { return OutcomeRefused }
