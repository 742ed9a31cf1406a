// Package jitter makes pauses that are never the same for two that were in each
// other's way.
package jitter

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var fixed atomic.Bool

// Fix takes chance out of Pause and Factor from now on, for simulations that must
// run the same again.
func Fix() { fixed.Store(true) }

// Pause gives a duration from half of d up to d, and d itself when it is fixed.
func Pause(d time.Duration) time.Duration {
	if d <= 0 || fixed.Load() {
		return d
	}
	return d/2 + rand.N(d/2+1)
}

// Factor is the part of a pause by which a back-off makes it longer or shorter by
// chance; 0 when it is fixed.
func Factor() float64 {
	if fixed.Load() {
		return 0
	}
	return 0.5
}
