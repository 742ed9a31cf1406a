package ops

// GroupFew gives the grouping of errors no time, as in too large a log.
func (s *Store) GroupFew() { s.finder.whole, s.finder.groupFor = 1, 0 }
