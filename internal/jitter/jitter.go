// Package jitter makes pauses that differ between two contenders.
package jitter

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

var fixed atomic.Bool

// Fix removes chance from Pause and BackOff from now on, for repeatable simulations.
func Fix() { fixed.Store(true) }

// Pause returns a duration from half of d up to d, and d itself after Fix.
func Pause(d time.Duration) time.Duration {
	if d <= 0 || fixed.Load() {
		return d
	}
	return d/2 + rand.N(d/2+1)
}

// Sleep waits for d. It returns false after an earlier end of ctx.
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

// BackOff returns pauses that double from initial to most. Without Fix, each is randomly
// longer or shorter by up to half of it.
func BackOff(initial, most time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: initial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: most}
	if fixed.Load() {
		b.RandomizationFactor = 0
	}
	b.Reset()
	return b
}
