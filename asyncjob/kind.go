package asyncjob

import "time"

const (
	// failsAt is after how many failures in a row a kind of unit counts as failing.
	failsAt = 3
	// trustedFor is for how long deliveries in a row let a kind have all workers.
	trustedFor = 5 * time.Second
	// maxKinds bounds how many texts a source remembers.
	maxKinds = 1000
)

// kindOfUnit is what is known of units with the same text but for values. A queue's lock
// guards it.
type kindOfUnit struct {
	// busy is how many workers are on it, failed how many failed in a row, and row how
	// many were delivered or parked in a row, the last at that time.
	busy, failed, row int
	delivered         time.Time
}

func (k *kindOfUnit) trusted(row int) bool {
	return k.row >= row && time.Since(k.delivered) < trustedFor
}

// ended notes what became of a unit; tried: an attempt said so.
func (k *kindOfUnit) ended(was kind, tried bool) {
	switch {
	case was == delivered, was == parked: // which is answered as fast, and does not come again
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
