package sqltext

// maxAssigned is how many assigned columns of one SET are compared with what
// others are set from. A reference to one beyond them is not seen.
const maxAssigned = 64

type span struct{ start, end int }

// assigned is a column on the left side of an assignment.
type assigned struct {
	qualifier, name span
	// group is the number of its assignment.
	group int
	// literal is the right side, if that is one token.
	literal span
}

// assignments are those of one SET.
type assignments struct {
	columns [maxAssigned]assigned
	n       int
	depth   int
	// group is the assignment that is being read.
	group int
}

// endsSet reports whether the assignments at depth are over; cases counts the
// CASE that are open at that depth.
func (c *cursor) endsSet(depth, cases int) bool {
	if c.leaves(depth) {
		return true
	}
	if c.depth > depth || c.prev[0].char == '.' {
		return false
	}
	switch c.tok.kw {
	case kwWhere, kwReturning, kwOrder, kwLimit, kwOn:
		return true
	case kwFrom:
		return c.prev[0].kw != kwDistinct
	case kwWhen:
		return cases == 0
	}
	return false
}

// assigns reports whether tok is the sign of an assignment at depth.
func (c *cursor) assigns(depth int) bool {
	return c.depth == depth && (c.tok.char == '=' || c.tok.typ == tokAssign)
}

// countCase follows CASE … END at depth.
func (c *cursor) countCase(depth, cases int) int {
	if c.depth == depth && c.prev[0].char != '.' {
		switch {
		case c.tok.kw == kwCase:
			return cases + 1
		case c.tok.kw == kwEnd && cases > 0:
			return cases - 1
		}
	}
	return cases
}

// collect notes the assigned columns from c on.
func (a *assignments) collect(c cursor) {
	a.depth = c.depth
	for group := 0; !c.endsSet(a.depth, 0); group++ {
		first, subscript := a.n, false
		for !c.endsSet(a.depth, 0) && !c.assigns(a.depth) {
			subscript = subscript || c.tok.char == '['
			if !subscript {
				a.add(&c, group)
			}
			c.advance()
		}
		if !c.assigns(a.depth) {
			return
		}
		c.advance()
		if c.ahead.char == ',' || c.ahead.typ == tokEOF || c.ahead.typ == tokWord {
			for i := first; i < a.n; i++ {
				a.columns[i].literal = span{c.tok.start, c.tok.end}
			}
		}
		for cases := 0; !c.endsSet(a.depth, cases) && (c.tok.char != ',' || c.depth > a.depth); {
			cases = c.countCase(a.depth, cases)
			c.advance()
		}
		if c.tok.char == ',' {
			c.advance()
		}
	}
}

// add notes the column at which c stands, if it is at one.
func (a *assignments) add(c *cursor, group int) {
	if a.n == maxAssigned || c.tok.typ != tokWord && c.tok.typ != tokIdent {
		return
	}
	var qualifier token
	if c.lex.flavor == Postgres {
		// What follows a dot is a field of the column.
		if c.prev[0].char == '.' {
			return
		}
	} else {
		if c.ahead.char == '.' {
			return
		}
		qualifier = c.qualifier()
	}
	a.columns[a.n] = assigned{
		qualifier: span{qualifier.start, qualifier.end}, name: span{c.tok.start, c.tok.end}, group: group,
	}
	a.n++
}

// values reads the assignments and reports whether one of them refers to what
// they change.
func (s *doubling) values(a *assignments) (self bool) {
	for a.group = 0; !s.endsSet(a.depth, 0); a.group++ {
		for !s.endsSet(a.depth, 0) && !s.assigns(a.depth) {
			s.advance()
		}
		if !s.assigns(a.depth) {
			break
		}
		s.advance()
		self = s.value(a) || self
		if s.tok.char == ',' {
			s.advance()
		}
	}
	return self
}

// value reads the right side of an assignment up to its comma or the end.
func (s *doubling) value(a *assignments) (self bool) {
	var (
		sign = s.prev[0]
		wrap = s.wraps()
		// closed: the column itself, or what wraps it, has ended.
		closed bool
		// same: the column was met where its value stays as it is, unless
		// something is done with the whole.
		same, whole = false, true
		// named, reads: a subquery names an assigned column, and reads the table.
		named, reads    bool
		cases           int
		inside, inQuery int // the depth within VALUES(…), a subquery
	)
	for !s.endsSet(a.depth, cases) && (s.tok.char != ',' || s.depth > a.depth) {
		if s.depth < inside {
			inside = 0
		}
		if s.depth < inQuery {
			inQuery = 0
		}
		whole = whole && !closed
		cases = s.countCase(a.depth, cases)
		switch {
		case s.tok.char == '(':
			if inside == 0 && (s.prev[0].kw == kwValues || s.prev[0].kw == kwValue || s.prev[0].kw == kwDefault) {
				inside = s.depth + 1
			}
			if inQuery == 0 && (s.ahead.kw == kwSelect || s.ahead.kw == kwWith) {
				inQuery = s.depth + 1
			}
		case s.tok.char == ')':
			closed = closed || wrap >= wrapFirst && s.depth == a.depth+1
		case s.tok.kw == kwEnd && wrap == wrapCase && cases == 0 && s.depth == a.depth:
			closed = true
		case inside == 0 && s.isName():
			if inQuery > 0 && sameName(s.plain(s.tok), s.plain(s.table)) &&
				(s.before.kw == kwFrom || s.before.kw == kwJoin || s.prev[0].char == ',') {
				reads = true
			}
			own, other := a.refers(s)
			switch {
			case !own && !other:
			case inQuery > 0 && s.qualifier().end == 0:
				// Of the subquery's table, if that has one of the name.
				named = true
			case other:
				self = true
			case s.depth == a.depth && s.before.start == sign.start:
				same, closed = true, true
			case s.keeps(wrap, a.depth, cases):
				same = true
			default:
				self = true
			}
		}
		s.advance()
	}
	return self || same && !whole || named && reads
}

// wrap is what a right side begins with if a column in it is the same the second
// time.
type wrap uint8

const (
	wrapNothing wrap = iota
	wrapCase
	// wrapFirst, wrapAny: a function that gives the same for its own result as
	// first, or any, argument.
	wrapFirst
	wrapAny
)

func (s *doubling) wraps() wrap {
	switch {
	case s.tok.kw == kwCase:
		return wrapCase
	case s.tok.typ == tokWord && s.ahead.char == '(':
		return lookupWrap(s.text(s.tok))
	}
	return wrapNothing
}

// keeps reports whether w leaves the column at s as it is.
func (s *doubling) keeps(w wrap, depth, cases int) bool {
	switch w {
	case wrapCase:
		if s.depth > depth || cases != 1 || s.before.kw != kwThen && s.before.kw != kwElse {
			return false
		}
		return s.ahead.kw == kwWhen || s.ahead.kw == kwElse || s.ahead.kw == kwEnd
	case wrapFirst, wrapAny:
		if s.depth != depth+1 || s.ahead.char != ',' && s.ahead.char != ')' {
			return false
		}
		// The token before the name; the name may be dotted.
		before := s.lex.text[s.before.start]
		return before == '(' || before == ',' && w == wrapAny
	}
	return false
}

// refers reports whether the name at s is the column being assigned, or another
// one assigned by the same SET. MySQL assigns from left to right: what was
// assigned before has its new value, the same every time.
func (a *assignments) refers(s *doubling) (own, other bool) {
	name, qualifier := s.plain(s.tok), s.plain(s.qualifier())
	for i := range a.n {
		c := &a.columns[i]
		if c.group < a.group && s.lex.flavor == MySQL {
			continue
		}
		if !sameName(name, plain(s.lex.text[c.name.start:c.name.end])) {
			continue
		}
		if qualifier != "" {
			if q := plain(s.lex.text[c.qualifier.start:c.qualifier.end]); q != "" {
				if !sameName(q, qualifier) {
					continue
				}
			} else if !sameName(qualifier, s.plain(s.table)) && !sameName(qualifier, s.plain(s.alias)) {
				continue
			}
		}
		if c.group == a.group {
			own = true
		} else {
			other = true
		}
	}
	return own, other
}

// names reports whether s is at the name of an assigned column.
func (a *assignments) names(s *doubling) bool {
	name := s.plain(s.tok)
	for i := range a.n {
		if c := a.columns[i].name; sameName(name, plain(s.lex.text[c.start:c.end])) {
			return true
		}
	}
	return false
}

// guards reports whether the comparison at s no longer holds after the
// assignments: its column is given another value than it is compared with.
func (a *assignments) guards(s *doubling) bool {
	if a == nil {
		return false
	}
	name, value := s.plain(s.prev[0]), s.text(s.ahead)
	for i := range a.n {
		c := &a.columns[i]
		if !sameName(name, plain(s.lex.text[c.name.start:c.name.end])) {
			continue
		}
		switch c := value[0]; {
		case c == '?', c == '$', c == ':', c == '@':
			return true
		}
		return !sameName(value, s.lex.text[c.literal.start:c.literal.end])
	}
	return false
}

// plain is the name that t spells.
func (s *doubling) plain(t token) string { return plain(s.text(t)) }

// plain takes the quotes off a name. A doubled quote in it stays.
func plain(name string) string {
	if n := len(name); n > 1 {
		switch name[n-1] {
		case '"', '`', ']':
			for i := range n {
				if c := name[i]; c == '"' || c == '`' || c == '[' {
					return name[i+1 : n-1]
				}
			}
		}
	}
	return name
}

// sameName compares names as most databases compare those of columns, ignoring
// case.
func sameName(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		x, y := a[i], b[i]
		if x != y {
			if x|0x20 != y|0x20 || x|0x20 < 'a' || 'z' < x|0x20 {
				return false
			}
		}
	}
	return true
}
