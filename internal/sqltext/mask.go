package sqltext

import "strings"

// Mask gives text without the values in it: every literal is a ?, comments are
// left out and blanks are single. Some databases take what is between double
// quotes for a value where one may stand, so it is kept only for names of tables.
// Texts that differ in values only become the same.
func Mask(f Flavor, text string) string {
	c := valuesOf(f, text)
	var out strings.Builder
	last := 0
	for ; c.tok.typ != tokEOF; c.advance() {
		if c.tok.start > last && out.Len() > 0 {
			out.WriteByte(' ')
		}
		last = c.tok.end
		if c.isValue() {
			out.WriteByte('?')
			continue
		}
		out.WriteString(c.text(c.tok))
	}
	return out.String()
}

// values moves over all of a text and tells which tokens are values.
type values struct{ cursor }

func valuesOf(f Flavor, text string) values {
	c := values{cursor{lex: lexer{text: text, flavor: f}, end: len(text)}}
	c.advance()
	c.advance()
	return c
}

// isValue reports whether tok is, or could be, a literal.
func (c *values) isValue() bool {
	switch c.tok.typ {
	case tokString:
		return true
	case tokValue:
		// $1 and ?1 are parameters.
		numbered := c.prev[0].char == '$' || c.prev[0].char == '?'
		return isDigit(c.lex.text[c.tok.start]) && (!numbered || c.prev[0].end != c.tok.start)
	case tokIdent:
		if c.lex.text[c.tok.start] != '"' || c.lex.flavor == Postgres {
			return false
		}
		switch c.prev[0].kw {
		case kwInto, kwUpdate, kwFrom, kwJoin:
			return false
		}
		return c.prev[0].char != '.' && c.ahead.char != '.'
	}
	return false
}

// Shape is [Mask] that also leaves out how many rows a VALUES lists, and how
// parameters are numbered: texts that differ in their values and in their number
// of rows only become the same.
func Shape(f Flavor, text string) string {
	c := valuesOf(f, text)
	var out strings.Builder
	rows := -1 // the depth of the rows of the VALUES that is being read
	for ; c.tok.typ != tokEOF; c.advance() {
		switch {
		case c.isNumber():
			continue // after its $ or ?
		case c.tok.kw == kwValues && c.ahead.char == '(':
			rows = c.depth
		case rows >= 0 && c.depth == rows && c.prev[0].char == ')' && c.tok.char == ',' && c.ahead.char == '(':
			c.skipRow(rows)
			continue
		case rows >= 0 && (c.depth < rows || c.depth == rows && c.tok.char != '('):
			rows = -1
		}
		if out.Len() > 0 {
			out.WriteByte(' ')
		}
		if c.isValue() {
			out.WriteByte('?')
		} else {
			out.WriteString(c.text(c.tok))
		}
	}
	return out.String()
}

// skipRow moves from a comma to the end of the row after it.
func (c *values) skipRow(depth int) {
	c.advance()
	for c.advance(); c.tok.typ != tokEOF && !(c.tok.char == ')' && c.depth == depth+1); c.advance() {
	}
}

// isNumber reports whether tok is that of a parameter.
func (c *values) isNumber() bool {
	return c.tok.typ == tokValue && (c.prev[0].char == '$' || c.prev[0].char == '?') && c.prev[0].end == c.tok.start
}
