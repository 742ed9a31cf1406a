package bedhttp

import "sync/atomic"

// Counters count the answers of the middleware to requests with a key. They may be read at
// any time, and shared between middlewares to add them up.
type Counters struct {
	// Replayed counts requests that got the response to an earlier one.
	Replayed atomic.Uint64
	// Outstanding counts requests that were answered 409 because the first one had not
	// ended within Config.Wait.
	Outstanding atomic.Uint64
	// Refused counts requests that were turned away for good: a key that was used for
	// another request, is missing or malformed, an unknown client, an unusable body, a
	// COMMIT that the database refused.
	Refused atomic.Uint64
	// Failed counts requests that were answered 429, 500 or 503 in place of the handler.
	Failed atomic.Uint64
}

func (c *Counters) count(p problem) {
	switch {
	case p.Type == outstanding.Type:
		c.Outstanding.Add(1)
	case p.Status < 500 && !p.retry:
		c.Refused.Add(1)
	default:
		c.Failed.Add(1)
	}
}
