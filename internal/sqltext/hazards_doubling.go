package sqltext

// doubling looks for what a second run would change a second time.
type doubling struct {
	cursor
	found Hazards
	// table and alias name what the current statement writes to.
	table, alias token
}

func (s *doubling) look() {
	for s.tok.typ != tokEOF {
		switch kw := s.tok.kw; {
		case kw == kwUpdate:
			s.update()
		case kw == kwDelete:
			s.advance()
			s.limit(s.depth, nil)
		case kw == kwMerge:
			s.merge()
		case (kw == kwInsert || kw == kwReplace) && kw.isDML(s.lex.flavor) && s.ahead.char != '(':
			s.insert()
		default:
			s.advance()
		}
	}
}

// leaves reports whether the part of the statement at depth is over.
func (c *cursor) leaves(depth int) bool {
	return c.tok.typ == tokEOF || c.depth < depth || c.depth == depth && c.tok.char == ')'
}

// target reads the name of the table to be written and its alias.
func (s *doubling) target() {
	s.table, s.alias = token{}, token{}
	if s.tok.typ != tokWord && s.tok.typ != tokIdent {
		return
	}
	for s.ahead.char == '.' {
		s.advance()
		s.advance()
	}
	s.table = s.tok
	s.advance()
	if s.tok.char == '*' {
		s.advance()
	}
	switch {
	case s.tok.kw == kwAs:
		s.advance()
		s.alias = s.tok
		s.advance()
	case s.tok.typ == tokIdent, s.tok.typ == tokWord && s.tok.kw == 0:
		s.alias = s.tok
		s.advance()
	}
}

// options steps over what is between the verb and the table, and reports whether
// it keeps an existing row from being written again.
func (s *doubling) options() (keyed bool) {
	for s.ahead.typ == tokWord || s.ahead.typ == tokIdent {
		switch s.tok.kw {
		case kwIgnore:
			keyed = true
		case kwOr:
			s.advance()
			keyed = keyed || s.tok.kw == kwIgnore || s.tok.kw == kwReplace
		case kwInto, kwOnly, kwLowPriority, kwHighPriority, kwDelayed:
			if s.ahead.kw == kwSet {
				return keyed // a table of that name
			}
		default:
			return keyed
		}
		s.advance()
	}
	return keyed
}

func (s *doubling) update() {
	s.advance()
	depth := s.depth
	s.options()
	s.target()
	for !s.leaves(depth) && (s.tok.kw != kwSet || s.depth > depth) {
		s.advance()
	}
	if s.leaves(depth) {
		return
	}
	var a assignments
	if self, guarded := s.set(&a), s.limit(depth, &a); self && !guarded {
		s.found |= SelfReferring
	}
}

// set reads the assignments after the current SET or UPDATE.
func (s *doubling) set(a *assignments) (self bool) {
	s.advance()
	a.collect(s.cursor)
	return s.values(a)
}

// limit reads an UPDATE after its assignments, or a whole DELETE (a is nil),
// and reports whether its WHERE finds no row that it has changed.
func (s *doubling) limit(depth int, a *assignments) (guarded bool) {
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
		s.advance()
	}
	guarded = guarded && !either
	if limited && (either || !byID) && (a == nil || touches || !ordered) {
		s.found |= Limited
	}
	return guarded
}

func (s *doubling) merge() {
	s.advance()
	depth := s.depth
	s.options()
	s.target()
	for !s.leaves(depth) {
		if s.tok.kw != kwUpdate || s.ahead.kw != kwSet {
			s.advance()
			continue
		}
		s.advance()
		var a assignments
		if s.set(&a) {
			s.found |= SelfReferring
		}
	}
}

// insertion is what an INSERT or REPLACE says of its row's key.
type insertion struct {
	// keyed says that an existing row is replaced, changed or left alone.
	keyed bool
	// listed: it names its columns.
	listed bool
	// key is the place of a column that can be a key, -1 if none is named.
	key int
	// id is the place of the column id, -1 if it is not named.
	id int
	// generated: the database makes the key.
	generated bool
	// selects: its rows are a query's.
	selects bool
	// exists: the query looks whether something exists.
	exists bool
}

func (s *doubling) insert() {
	i := insertion{keyed: s.tok.kw == kwReplace, key: -1, id: -1}
	s.advance()
	depth := s.depth
	i.keyed = s.options() || i.keyed
	s.target()
	if s.tok.kw == kwPartition && s.ahead.char == '(' {
		s.advance()
		s.group()
	}
	s.columns(&i)
	s.source(&i, depth)
	for !s.leaves(depth) {
		switch {
		case s.tok.kw == kwExists:
			i.exists = true
		case s.depth > depth:
		case s.tok.kw == kwOn && (s.ahead.kw == kwConflict || s.ahead.kw == kwDuplicate):
			i.keyed = true
		case s.tok.kw == kwUpdate && i.keyed && (s.ahead.kw == kwSet || s.prev[0].kw == kwKey):
			if s.ahead.kw == kwSet {
				s.advance()
			}
			var a assignments
			if s.set(&a) {
				s.found |= SelfReferring
			}
			continue
		case s.answer && s.isName() && (s.before.kw == kwReturning || s.lex.text[s.before.start] == ','):
			if i.listed && i.key < 0 && !i.exists && sameName(s.plain(s.tok), "id") {
				i.generated = true
			}
		}
		s.advance()
	}
	switch {
	case i.keyed:
	case i.generated && i.key == i.id:
		s.found |= NoKey
	case i.key < 0 && (!i.selects || i.listed && !i.exists):
		s.found |= KeyUnknown
	}
}

// group steps over what is in parentheses.
func (s *doubling) group() {
	for depth := s.depth; ; {
		s.advance()
		if s.tok.typ == tokEOF || s.depth <= depth {
			return
		}
	}
}

// columns reads the list of an INSERT's columns.
func (s *doubling) columns(i *insertion) {
	if s.tok.char != '(' {
		return
	}
	switch s.ahead.kw {
	case kwSelect, kwWith, kwValues, kwTable:
		return
	}
	if s.ahead.char == '(' {
		return
	}
	i.listed = true
	s.advance()
	for depth, n := s.depth, 0; !s.leaves(depth); s.advance() {
		if s.tok.char == ',' {
			n++
			continue
		}
		i.column(s.plain(s.tok), n)
	}
	s.advance()
}

// column looks at the name of the n-th column.
func (i *insertion) column(name string, n int) {
	if isKeyName(name) {
		i.key = n
	}
	if sameName(name, "id") {
		i.id = n
	}
}

// isKeyName reports whether a column of that name is a row's key, and not a
// reference to another row's.
func isKeyName(name string) bool {
	switch len(name) {
	case 2:
		return sameName(name, "id")
	case 4:
		return sameName(name, "uuid") || sameName(name, "guid") || sameName(name, "ulid")
	}
	return false
}

// source reads an INSERT from after its columns into its first row.
func (s *doubling) source(i *insertion, depth int) {
	for !s.leaves(depth) {
		switch kw := s.tok.kw; {
		case kw == kwDefault && s.ahead.kw == kwValues:
			i.generated = true
			return
		case kw == kwValues, kw == kwValue && s.ahead.char == '(':
			s.advance()
			s.row(i)
			return
		case kw == kwSet && s.lex.flavor == MySQL:
			s.setRow(i, depth)
			return
		case kw == kwSelect, kw == kwWith, kw == kwTable, s.tok.char == '(':
			i.selects = true
			return
		}
		s.advance()
	}
}

// row reads the first row of VALUES.
func (s *doubling) row(i *insertion) {
	if s.tok.kw == kwRow {
		s.advance()
	}
	if s.tok.char != '(' {
		return
	}
	s.advance()
	depth, n := s.depth, 0
	if s.leaves(depth) {
		i.generated = i.generated || s.lex.flavor == MySQL // VALUES ()
	}
	for ; !s.leaves(depth); s.advance() {
		switch {
		case s.depth > depth:
		case s.tok.char == ',':
			n++
		case n == i.id, !i.listed && n == 0:
			alone := s.prev[0].char == ',' || s.prev[0].char == '('
			if alone && (s.ahead.char == ',' || s.ahead.char == ')') && s.makesKey(s.tok) {
				i.generated = true
			}
		}
	}
	s.advance()
}

// makesKey reports whether t, given for a key, has the database make one.
func (s *doubling) makesKey(t token) bool {
	switch t.kw {
	case kwDefault:
		return s.lex.flavor != SQLite
	case kwNull:
		return s.lex.flavor != Postgres
	}
	return false
}

// setRow reads the row of MySQL's INSERT … SET.
func (s *doubling) setRow(i *insertion, depth int) {
	i.listed = true
	s.advance()
	for !s.endsSet(depth, 0) {
		if s.depth == depth && s.tok.char == '=' {
			name := s.plain(s.prev[0])
			i.column(name, 0)
			if sameName(name, "id") && s.makesKey(s.ahead) {
				i.generated = true
			}
		}
		s.advance()
	}
}
