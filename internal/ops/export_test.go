package ops

// GroupFew lets errors be grouped in no time, as in a log that is too large for it.
func (s *Store) GroupFew() { s.finder.whole, s.finder.groupFor = 1, 0 }
