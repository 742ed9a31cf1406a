package sqltext

// Hazards are the ways in which running a DML twice is not running it once,
// as far as its text tells without its tables. That rows come from other
// tables (INSERT … SELECT, UPDATE … FROM) is none by itself: what is read there
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
	// tok is the current token, ahead the one behind it.
	tok, ahead token
	// prev holds the tokens before tok, the nearest first.
	prev [4]token
	// before is the token before the dotted name that tok belongs to, or the last
	// name before tok; earlier is the token before that name.
	before, earlier token
	depth           int
	// end is where the statement's last token ends.
	end int
}

func (c *cursor) atEnd() bool { return c.tok.typ == tokEOF }

// advance moves to the next token.
func (c *cursor) advance() {
	switch c.tok.char {
	case '(':
		c.depth++
	case ')':
		c.depth--
	}
	copy(c.prev[1:], c.prev[:])
	c.prev[0] = c.tok
	c.tok = c.ahead
	c.ahead = c.read()
	if (c.tok.typ == tokWord || c.tok.typ == tokIdent) && c.prev[0].char != '.' {
		c.before, c.earlier = c.prev[0], c.before
	}
}

// read gives the token behind ahead.
func (c *cursor) read() token {
	t := c.lex.next()
	if t.start >= c.end {
		return token{start: c.end, end: c.end}
	}
	return t
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

// leaves reports whether the part of the statement at depth is over.
func (c *cursor) leaves(depth int) bool {
	return c.atEnd() || c.depth < depth || c.depth == depth && c.tok.char == ')'
}

// scan looks for hazards.
type scan struct {
	cursor
	found Hazards
	// where has a bit set for each depth at which there is a condition.
	where uint64
	// answer: RETURNING was met, what follows is not written.
	answer bool
	// table and alias name what the current statement writes to.
	table, alias token
}

// hazards reads the DML that begins with first, with lex behind it, and ends
// before end. It allocates nothing.
func hazards(lex lexer, first token, end int) Hazards {
	s := scan{cursor: cursor{lex: lex, tok: first, end: end}}
	s.ahead = s.read()
	for !s.atEnd() {
		switch kw := s.tok.kw; {
		case kw == kwUpdate:
			s.update()
		case kw == kwDelete:
			s.next()
			s.limit(s.depth, nil)
		case kw == kwMerge:
			s.merge()
		case (kw == kwInsert || kw == kwReplace) && kw.isDML(lex.flavor) && s.ahead.char != '(':
			s.insert()
		default:
			s.next()
		}
	}
	return s.found
}

// next looks at the current token for what is not the same at another time,
// and moves on.
func (s *scan) next() {
	switch s.tok.typ {
	case tokWord:
		s.clause()
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
			s.condition(false)
		}
	}
	s.advance()
}

// clause follows where conditions begin and end.
func (s *scan) clause() {
	switch s.tok.kw {
	case kwWhere, kwHaving:
		s.condition(true)
	case kwSelect, kwSet, kwValues:
		s.condition(false)
	case kwUpdate:
		s.answer = false
		s.condition(false)
	case kwInsert, kwDelete:
		s.answer = false
	case kwReturning:
		s.answer = true
	}
}

// condition notes whether what follows at this depth is one.
func (s *scan) condition(yes bool) {
	if s.depth < 0 || s.depth > 63 {
		return
	}
	s.where &^= 1 << s.depth
	if yes {
		s.where |= 1 << s.depth
	}
}

// word looks at a word that may be a function.
func (s *scan) word() {
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
func (s *scan) knowsClock() bool {
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
func (s *scan) varies(v varies) {
	switch {
	case s.answer || v == 0:
	case v&variesRandom != 0:
		s.found |= NonDeterministic
	case s.where == 0:
		s.found |= Clock
	}
}

// sqliteNow finds the 'now' of SQLite's functions of date and time.
func (s *scan) sqliteNow() {
	text := s.text(s.tok)
	if len(text) != len("'now'") || !sameName("now", text[1:4]) {
		return
	}
	f := s.prev[1]
	if s.prev[0].char == ',' && s.prev[2].char == '(' {
		f = s.prev[3] // behind strftime's format
	} else if s.prev[0].char != '(' {
		return
	}
	if f.typ == tokWord && lookupVaries(SQLite, s.text(f))&variesNow != 0 {
		s.varies(variesClock)
	}
}

// target reads the name of the table to be written and its alias.
func (s *scan) target() {
	s.table, s.alias = token{}, token{}
	if s.tok.typ != tokWord && s.tok.typ != tokIdent {
		return
	}
	for s.ahead.char == '.' {
		s.next()
		s.next()
	}
	s.table = s.tok
	s.next()
	if s.tok.char == '*' {
		s.next()
	}
	switch {
	case s.tok.kw == kwAs:
		s.next()
		s.alias = s.tok
		s.next()
	case s.tok.typ == tokIdent, s.tok.typ == tokWord && s.tok.kw == 0:
		s.alias = s.tok
		s.next()
	}
}

// options steps over what is between the verb and the table, and reports whether
// it keeps an existing row from being written again.
func (s *scan) options() (keyed bool) {
	for s.ahead.typ == tokWord || s.ahead.typ == tokIdent {
		switch s.tok.kw {
		case kwIgnore:
			keyed = true
		case kwOr:
			s.next()
			keyed = keyed || s.tok.kw == kwIgnore || s.tok.kw == kwReplace
		case kwInto, kwOnly, kwLowPriority, kwHighPriority, kwDelayed:
			if s.ahead.kw == kwSet {
				return keyed // a table of that name
			}
		default:
			return keyed
		}
		s.next()
	}
	return keyed
}

func (s *scan) update() {
	s.next()
	depth := s.depth
	s.options()
	s.target()
	for !s.leaves(depth) && (s.tok.kw != kwSet || s.depth > depth) {
		s.next()
	}
	if s.leaves(depth) {
		return
	}
	var a assignments
	if self, guarded := s.set(&a), s.limit(depth, &a); self && !guarded {
		s.found |= SelfReferring
	}
}

// set reads the assignments behind the current SET or UPDATE.
func (s *scan) set(a *assignments) (self bool) {
	s.next()
	a.collect(s.cursor)
	return s.values(a)
}

// limit reads an UPDATE behind its assignments, or a whole DELETE (a is nil),
// and reports whether its WHERE finds no row that it has changed.
func (s *scan) limit(depth int, a *assignments) (guarded bool) {
	var limited, ordered, either, byID, touches bool
	for !s.leaves(depth) {
		if s.depth == depth {
			switch {
			case s.prev[0].char == '.':
			case s.tok.kw == kwLimit:
				limited = s.lex.flavor != Postgres
			case s.tok.kw == kwOrder:
				ordered = true
			case s.tok.kw == kwOr:
				either = true
			case (s.tok.char == '=' || s.tok.kw == kwIs) && s.comparesValue():
				byID = byID || isKeyName(s.plain(s.prev[0]))
				guarded = guarded || a.guards(s)
			}
		}
		if a != nil && s.isName() {
			touches = touches || a.names(s)
		}
		s.next()
	}
	guarded = guarded && !either
	if limited && (either || !byID) && (a == nil || touches || !ordered) {
		s.found |= Limited
	}
	return guarded
}
