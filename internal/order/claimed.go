package order

import (
	"sync/atomic"

	"github.com/bedsql/bed/internal/claim"
)

// Claimed is the work of a job on a unit under order keys. A claimed unit has its turn.
type Claimed struct {
	Work func() claim.Result
	// Freed is set once the unit leaves the log: others may then become due.
	Freed *atomic.Bool
}

// Deliver does the work.
func (c Claimed) Deliver() claim.Result {
	r := c.Work()
	if r.Kind == claim.Delivered || r.Kind == claim.Refused {
		c.Freed.Store(true)
	}
	return r
}
