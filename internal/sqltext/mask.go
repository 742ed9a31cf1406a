package sqltext

import "strings"

// Mask gives text without the values in it: every literal is a ?, comments are
// left out and blanks are single. What is between double quotes is a value to
// some databases where it stands for one, so that only names of tables are kept
// there. Texts that differ in values only become the same.
func Mask(f Flavor, text string) string {
	c := cursor{lex: lexer{text: text, flavor: f}, end: len(text)}
	c.tok, c.ahead = c.read(), token{}
	c.ahead = c.read()
	var out strings.Builder
	last := 0
	for ; !c.atEnd(); c.advance() {
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

// isValue reports whether tok is, or could be, a literal.
func (c *cursor) isValue() bool {
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
