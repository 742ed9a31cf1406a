// Package jitter makes pauses that differ for two that were in each other's way.
package jitter

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

var fixed atomic.Bool

// Fix takes chance out of Pause and BackOff from now on, for simulations that must
// run the same again.
func Fix() { fixed.Store(true) }

// Pause gives a duration from half of d up to d, and d itself when it is fixed.
func Pause(d time.Duration) time.Duration {
	if d <= 0 || fixed.Load() {
		return d
	}
	return d/2 + rand.N(d/2+1)
}

// Sleep waits for d; false if ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// BackOff gives pauses that double from initial to most, each longer or shorter by
// up to half of it by chance unless that is fixed.
func BackOff(initial, most time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: initial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: most}
	if fixed.Load() {
		b.RandomizationFactor = 0
	}
	b.Reset()
	return b
}
