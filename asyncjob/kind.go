package asyncjob

import (
	"time"

	"github.com/bedsql/bed/internal/claim"
)

const (
	// failsAt is the number of failures in a row from which a kind of unit counts as failing.
	failsAt = 3
	// trustedFor is how long deliveries in a row let a kind have all workers.
	trustedFor = 5 * time.Second
	// maxKinds bounds the number of texts that a source remembers.
	maxKinds = 1000
)

// kindOfUnit is the record of units with the same text but for values. A queue's lock guards
// it.
type kindOfUnit struct {
	// busy counts its workers, failed its failures in a row, and row its deliveries or parkings
	// in a row. delivered is the time of the last of these.
	busy, failed, row int
	delivered         time.Time
}

func (k *kindOfUnit) trusted(row int) bool {
	return k.row >= row && time.Since(k.delivered) < trustedFor
}

// ended records the end of a unit; tried means after an attempt.
func (k *kindOfUnit) ended(was claim.Kind, tried bool) {
	switch {
	case was == claim.Delivered, was == claim.Parked: // which is answered as fast, and does not come again
		if !k.trusted(0) {
			k.row = 0
		}
		k.row++
		k.failed, k.delivered = 0, time.Now()
	case tried:
		k.failed++
		k.row = 0
	}
}
