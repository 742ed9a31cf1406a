package entry

import (
	"errors"
	"fmt"
	"time"
)

// Lease is the right to deliver, judge and remove a unit for a while.
type Lease struct {
	// Token names the owner and fences every write to the unit.
	Token string
	// Deadline is the earliest end of the lease, on this process's clocks: it was computed
	// before the request left. After it another owner may have the unit. Zero: the lease never
	// began (AddWithin), and any claimer may take the unit.
	Deadline time.Time
}

// Over reports whether the deadline has passed by either clock: the monotonic one stands
// still while a machine sleeps, and the wall clock may be set back.
func (l Lease) Over() bool {
	now := time.Now()
	return !now.Before(l.Deadline) || !now.Round(0).Before(l.Deadline.Round(0))
}

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
