package entry

import (
	"errors"
	"fmt"
)

// ErrLeaseLost is returned for a unit that the given token no longer owns: the lease ran
// out and another owner took, delivered or removed the unit.
var ErrLeaseLost = errors.New("txlog: the lease of the entry was lost")

// LeaseLostError is the [ErrLeaseLost] of a call about several units.
type LeaseLostError struct {
	// IDs lists the units that were not owned. The call succeeded for the others.
	IDs  []string
	what string
}

func (e *LeaseLostError) Error() string {
	text := fmt.Sprintf("%v (%s unit %s", ErrLeaseLost, e.what, e.IDs[0])
	if more := len(e.IDs) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ")"
}

// Unwrap returns ErrLeaseLost.
func (e *LeaseLostError) Unwrap() error { return ErrLeaseLost }

// LeaseLost returns an ErrLeaseLost that names the units.
func LeaseLost(what string, lost ...*Unit) error {
	err := &LeaseLostError{what: what, IDs: make([]string, len(lost))}
	for i, u := range lost {
		if u != nil {
			err.IDs[i] = u.ID
		}
	}
	return err
}
