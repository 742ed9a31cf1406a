package sqltext

// Hazards are the ways in which running a DML twice is not running it once,
// as far as its text tells without its tables. That rows come from other
// tables (INSERT … SELECT, UPDATE … FROM) is none in itself: what is read there
// is read again.
type Hazards uint8

const (
	// SelfReferring: a column is set from what the same statement changes
	// (SET n = n + 1, SET a = b, b = a, DO UPDATE SET n = t.n + excluded.n).
	// Not so for what is the same the second time (SET n = GREATEST(n, 5), SET s =
	// CASE … ELSE s END), nor when WHERE compares an assigned column with a
	// value, so that the second time no row is found (optimistic locking).
	SelfReferring Hazards = 1 << iota
	// NoKey: an INSERT leaves its row's id to the database, so that nothing
	// tells a second row from the first: DEFAULT VALUES, NULL or DEFAULT for
	// the id, RETURNING id where the id is not given.
	NoKey
	// Limited: an UPDATE or DELETE with LIMIT takes further rows the second time.
	Limited
	// NonDeterministic: it writes or chooses by random numbers, generated ids
	// or a sequence.
	NonDeterministic
	// Clock: a value that it writes is the time at which it runs. A clock in
	// a WHERE is none: the condition means the time at which it is looked at.
	Clock
	// KeyUnknown is no hazard yet: an INSERT whose text does not tell whether it
	// brings its key. A generated id in its answer does.
	KeyUnknown
)

// Doubling are the hazards of which a statement applied a second time changes
// the rows a second time.
const Doubling = SelfReferring | NoKey | Limited

// cursor moves over the tokens of a statement.
type cursor struct {
	lex lexer
	// tok is the current token, ahead the one after it.
	tok, ahead token
	// prev holds the tokens before tok, the nearest first.
	prev [4]token
	// before is the token before the dotted name that tok belongs to, or the last
	// name before tok; earlier is the token before that name.
	before, earlier token
	depth           int
	// answer: RETURNING was met, what follows is not written.
	answer bool
	// end is where the statement's last token ends.
	end int
}

// advance moves to the next token.
func (c *cursor) advance() {
	switch c.tok.char {
	case '(':
		c.depth++
	case ')':
		c.depth--
	}
	switch c.tok.kw {
	case kwReturning:
		c.answer = true
	case kwInsert, kwUpdate, kwDelete:
		c.answer = false
	}
	copy(c.prev[1:], c.prev[:])
	c.prev[0], c.tok = c.tok, c.ahead
	if c.ahead = c.lex.next(); c.ahead.start >= c.end {
		c.ahead = token{start: c.end, end: c.end}
	}
	if (c.tok.typ == tokWord || c.tok.typ == tokIdent) && c.prev[0].char != '.' {
		c.before, c.earlier = c.prev[0], c.before
	}
}

func (c *cursor) text(t token) string { return c.lex.text[t.start:t.end] }

// isName reports whether tok is the last part of a name of a column or table.
func (c *cursor) isName() bool {
	return (c.tok.typ == tokWord || c.tok.typ == tokIdent) && c.ahead.char != '(' && c.ahead.char != '.'
}

// qualifier is the part of the current name before its last; a token of length 0
// if there is none.
func (c *cursor) qualifier() token {
	if c.prev[0].char == '.' {
		return c.prev[1]
	}
	return token{}
}

// comparesValue reports whether the current = or IS compares the column before
// it, which every row found must satisfy, with a value.
func (c *cursor) comparesValue() bool {
	before := c.before
	if c.tok.kw == kwIs {
		before = c.earlier // IS is a word of its own
	}
	if before.kw != kwWhere && before.kw != kwAnd {
		return false
	}
	switch c.ahead.typ {
	case tokValue, tokString:
		return true
	case tokWord:
		return c.ahead.kw == kwNull
	default:
		switch c.ahead.char {
		case '?', '$', ':', '@':
			return true
		}
		return false
	}
}

// hazards reads the DML that begins with first, with lex just past it, and ends
// before end. once: only what matters to a write that is applied once. It
// allocates nothing.
func hazards(lex lexer, first token, end int, once bool) Hazards {
	c := cursor{lex: lex, ahead: first, end: end}
	c.advance()
	v := varying{cursor: c}
	v.look()
	if once {
		return v.found
	}
	d := doubling{cursor: c}
	d.look()
	return v.found | d.found
}

// varying looks for what is not the same at another time.
type varying struct {
	cursor
	found Hazards
	// where has a bit set for each depth at which there is a condition.
	where uint64
}

func (s *varying) look() {
	for ; s.tok.typ != tokEOF; s.advance() {
		here := uint64(1) << uint(s.depth) // 0 for a depth beyond reason
		switch s.tok.typ {
		case tokWord:
			switch s.tok.kw {
			case kwWhere, kwHaving:
				s.where |= here
			case kwSelect, kwSet, kwValues, kwUpdate:
				s.where &^= here
			case kwOn:
				if s.ahead.kw == kwConflict || s.ahead.kw == kwDuplicate {
					s.where &^= here
				}
			}
			s.word()
		case tokString:
			if s.lex.flavor == SQLite {
				s.sqliteNow()
			}
		case tokPunct:
			if s.tok.char == ')' {
				if s.prev[0].char == '(' && s.prev[1].typ == tokWord {
					if v := lookupVaries(s.lex.flavor, s.text(s.prev[1])); v&variesBare != 0 {
						s.varies(v)
					}
				}
				s.where &^= here
			}
		}
	}
}

// word looks at a word that may be a function.
func (s *varying) word() {
	switch s.tok.kw {
	case kwClock:
		if s.prev[0].char != '.' && s.prev[0].kw != kwAs && s.ahead.char != '.' && s.knowsClock() {
			s.varies(variesClock)
		}
		return
	case kwValue:
		if s.prev[0].kw == kwNext {
			s.varies(variesRandom)
		}
	}
	if s.tok.kw != 0 || s.ahead.char != '(' {
		return
	}
	switch s.before.kw {
	case kwInto, kwInsert, kwIgnore, kwUpdate, kwAs, kwWith, kwRecursive, kwTable:
		return // a name
	}
	if v := lookupVaries(s.lex.flavor, s.text(s.tok)); v&(variesBare|variesNow) == 0 {
		s.varies(v)
	}
}

// knowsClock reports whether the flavor has the current keyword for the clock.
func (s *varying) knowsClock() bool {
	switch c := s.lex.text[s.tok.start] | 0x20; s.lex.flavor {
	case SQLite:
		return c == 'c'
	case Postgres:
		return c != 'u'
	default:
		return true
	}
}

// varies notes the hazard of a function of that kind.
func (s *varying) varies(v varies) {
	switch {
	case s.answer || v == 0:
	case v&variesRandom != 0:
		s.found |= NonDeterministic
	case s.where == 0:
		s.found |= Clock
	}
}

// sqliteNow finds the 'now' of SQLite's functions of date and time.
func (s *varying) sqliteNow() {
	text := s.text(s.tok)
	if len(text) != len("'now'") || !sameName("now", text[1:4]) {
		return
	}
	f := s.prev[1]
	if s.prev[0].char == ',' && s.prev[2].char == '(' {
		f = s.prev[3] // after strftime's format
	} else if s.prev[0].char != '(' {
		return
	}
	if f.typ == tokWord && lookupVaries(SQLite, s.text(f))&variesNow != 0 {
		s.varies(variesClock)
	}
}
