package bedhttp

import "sync/atomic"

// Counters count the answers of the middleware to requests with a key. They may be read at
// any time, and shared between middlewares to add them up.
type Counters struct {
	// Replayed counts requests answered with an earlier response.
	Replayed atomic.Uint64
	// Outstanding counts requests answered 409 because the first one had not ended within
	// Config.Wait.
	Outstanding atomic.Uint64
	// Undone counts requests that undo another one and were answered 2xx, whether or not there was
	// anything to undo. A resent one counts as Replayed.
	Undone atomic.Uint64
	// Refused counts requests refused for good. Their key belongs to another request, is missing
	// or malformed; the client is unknown; the body is unusable; or the database refused the
	// COMMIT.
	Refused atomic.Uint64
	// Failed counts requests answered 429, 500 or 503 in place of the handler.
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
