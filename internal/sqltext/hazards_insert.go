package sqltext

func (s *scan) merge() {
	s.next()
	depth := s.depth
	s.options()
	s.target()
	for !s.leaves(depth) {
		if s.tok.kw != kwUpdate || s.ahead.kw != kwSet {
			s.next()
			continue
		}
		s.next()
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

func (s *scan) insert() {
	i := insertion{keyed: s.tok.kw == kwReplace, key: -1, id: -1}
	s.next()
	depth := s.depth
	i.keyed = s.options() || i.keyed
	s.target()
	if s.tok.kw == kwPartition && s.ahead.char == '(' {
		s.next()
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
			s.condition(false)
		case s.tok.kw == kwUpdate && i.keyed && (s.ahead.kw == kwSet || s.prev[0].kw == kwKey):
			if s.ahead.kw == kwSet {
				s.next()
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
		s.next()
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
func (s *scan) group() {
	for depth := s.depth; ; {
		s.next()
		if s.atEnd() || s.depth <= depth {
			return
		}
	}
}

// columns reads the list of an INSERT's columns.
func (s *scan) columns(i *insertion) {
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
	s.next()
	for depth, n := s.depth, 0; !s.leaves(depth); s.next() {
		if s.tok.char == ',' {
			n++
			continue
		}
		i.column(s.plain(s.tok), n)
	}
	s.next()
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
func (s *scan) source(i *insertion, depth int) {
	for !s.leaves(depth) {
		switch kw := s.tok.kw; {
		case kw == kwDefault && s.ahead.kw == kwValues:
			i.generated = true
			return
		case kw == kwValues, kw == kwValue && s.ahead.char == '(':
			s.next()
			s.row(i)
			return
		case kw == kwSet && s.lex.flavor == MySQL:
			s.setRow(i, depth)
			return
		case kw == kwSelect, kw == kwWith, kw == kwTable, s.tok.char == '(':
			i.selects = true
			return
		}
		s.next()
	}
}

// row reads the first row of VALUES.
func (s *scan) row(i *insertion) {
	if s.tok.kw == kwRow {
		s.next()
	}
	if s.tok.char != '(' {
		return
	}
	s.next()
	depth, n := s.depth, 0
	if s.leaves(depth) {
		i.generated = i.generated || s.lex.flavor == MySQL // VALUES ()
	}
	for ; !s.leaves(depth); s.next() {
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
	s.next()
}

// makesKey reports whether t, given for a key, has the database make one.
func (s *scan) makesKey(t token) bool {
	switch t.kw {
	case kwDefault:
		return s.lex.flavor != SQLite
	case kwNull:
		return s.lex.flavor != Postgres
	}
	return false
}

// setRow reads the row of MySQL's INSERT … SET.
func (s *scan) setRow(i *insertion, depth int) {
	i.listed = true
	s.next()
	for !s.endsSet(depth, 0) {
		if s.depth == depth && s.tok.char == '=' {
			name := s.plain(s.prev[0])
			i.column(name, 0)
			if sameName(name, "id") && s.makesKey(s.ahead) {
				i.generated = true
			}
		}
		s.next()
	}
}
