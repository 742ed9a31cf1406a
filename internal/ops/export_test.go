package ops

import (
	"context"

	"github.com/bedsql/bed/internal/entry"
)

// GroupFew gives the grouping of errors no time, as in too large a log.
func (s *Store) GroupFew() { s.whole, s.groupFor = 1, 0 }

// Supersede is supersede after a verdict from another session.
func (s *Store) Supersede(ctx context.Context, u *entry.Unit) error {
	to, err := s.cfg.target(u)
	if err == nil {
		_, err = s.supersede(ctx, to, u, NotApplied)
	}
	return err
}
