package dialect

import (
	"errors"
	"time"
)

// Advice is what an error says to the next attempt, beyond its class.
type Advice struct {
	// Operator means that only an operator can help. The unit waits, and no try counts.
	Operator bool
	// Busy means that no try counts, as for Contention, whatever the class.
	Busy bool
	// Final means that the data source keeps this refusal for all attempts of the unit: no earlier
	// one was applied, and no later one will be.
	Final bool
	// After is how long to wait at least; 0 for no wish.
	After time.Duration
}

// AdviceOf returns the advice of err, or of an error that it wraps.
func AdviceOf(err error) Advice {
	var with interface{ Advice() Advice }
	if errors.As(err, &with) {
		return with.Advice()
	}
	return Advice{}
}
