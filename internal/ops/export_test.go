package ops

// GroupFew gives the grouping of errors no time, as in too large a log.
func (s *Store) GroupFew() { s.whole, s.groupFor = 1, 0 }
