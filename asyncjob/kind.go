package asyncjob

import (
	"time"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

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
	// many were delivered in a row, the last at that time.
	busy, failed, row int
	delivered         time.Time
}

func (k *kindOfUnit) trusted(row int) bool {
	return k.row >= row && time.Since(k.delivered) < trustedFor
}

// ended notes what became of a unit; tried: an attempt said so.
func (k *kindOfUnit) ended(r result, tried bool) {
	switch {
	case r.kind == delivered:
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

// kindOf finds the kind of u.
func (s *source) kindOf(u *txlog.Unit) *kindOfUnit {
	if u.Unreadable != nil || len(u.Statements) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := u.Statements[0].SQL
	if k := s.kinds[text]; k != nil {
		return k
	}
	if s.kinds == nil || len(s.kinds) >= maxKinds {
		s.kinds = map[string]*kindOfUnit{}
	}
	masked := sqltext.Mask(s.own.target.Dialect.Flavor, text)
	k := s.kinds[masked]
	if k == nil {
		k = new(kindOfUnit)
		s.kinds[masked] = k
	}
	s.kinds[text] = k
	return k
}

// failedBefore reports whether u, or what is like it, failed at its last attempt.
func (u *claimed) failedBefore() bool {
	return u.Tries > 0 || u.ContendedFrom > 0 || u.kind != nil && u.kind.failed >= failsAt
}
