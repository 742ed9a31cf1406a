package bedsql

import "errors"

// EndError is what the End of a soft transaction reports when not every write
// was delivered.
type EndError struct {
	// Errors has one error for each write that was not delivered, in a staged soft
	// transaction one for each data source: a *RefusedError, a *PendingError, or
	// another error that says that nothing was applied.
	Errors []error
}

// Error gives the texts of all errors, one to a line.
func (e *EndError) Error() string { return errors.Join(e.Errors...).Error() }

// Unwrap gives Errors, so that errors.Is looks at all of them. errors.As finds
// the first that fits; Refused and Pending give every one of their kind.
func (e *EndError) Unwrap() []error { return e.Errors }

// Refused gives each write that was refused: it is parked in the log.
func (e *EndError) Refused() []*RefusedError { return each[*RefusedError](e.Errors) }

// Pending gives each write that is pending: the job delivers it, or it is parked
// because its outcome is not known.
func (e *EndError) Pending() []*PendingError { return each[*PendingError](e.Errors) }

// each gives those of the errors that are a T at their head: what a pending one
// wraps is its cause.
func each[T error](all []error) (found []T) {
	for _, err := range all {
		if one, ok := err.(T); ok { //nolint:errorlint // see above
			found = append(found, one)
		}
	}
	return found
}
