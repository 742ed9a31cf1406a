package asyncjob

import (
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/internal/jitter"
)

// retryDelay returns how long a unit rests after its failed try number tries (from 1).
func (c *Config) retryDelay(tries int) time.Duration {
	if c.RetryDelay <= 0 {
		return 0
	}
	b := &backoff.ExponentialBackOff{
		InitialInterval:     c.RetryDelay,
		RandomizationFactor: max(c.RetryJitter, 0),
		Multiplier:          c.RetryMultiplier,
		MaxInterval:         c.RetryDelayMax,
	}
	b.Reset()
	delay := b.NextBackOff()
	for i := 1; i < tries; i++ {
		delay = b.NextBackOff()
	}
	return delay
}

// storeBackOff paces the repetition of a failed write to the log.
func storeBackOff() *backoff.ExponentialBackOff {
	return jitter.BackOff(50*time.Millisecond, 2*time.Second)
}
