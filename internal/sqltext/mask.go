package sqltext

import "strings"

// Mask returns text without its values: every literal and every numbered parameter becomes a
// ?, comments disappear, gaps become single blanks, and a VALUES keeps one row. Some
// databases accept a value between double quotes, so Mask keeps double-quoted text only for
// names of tables. Texts that differ only in values and in their number of rows become
// equal.
func Mask(f Flavor, text string) string {
	switch f {
	case Messages:
		return text
	case Calls:
		return maskPath(text)
	}
	c := values{lex: lexer{text: text, flavor: f}}
	c.advance()
	c.advance()
	var out strings.Builder
	last := 0
	rows := -1 // the depth of the rows of the VALUES that is being read
	for ; c.tok.typ != tokEOF; c.advance() {
		switch {
		case c.tok.kw == "VALUES" && c.ahead.char == '(':
			rows = c.depth
		case rows >= 0 && c.depth == rows && c.prev.char == ')' && c.tok.char == ',' && c.ahead.char == '(':
			c.skipRow(rows)
			last = c.tok.end
			continue
		case rows >= 0 && (c.depth < rows || c.depth == rows && c.tok.char != '('):
			rows = -1
		}
		if c.tok.start > last && out.Len() > 0 {
			out.WriteByte(' ')
		}
		last = c.tok.end
		switch {
		case c.isNumber(): // after the mark of a parameter
		case c.isValue():
			out.WriteByte('?')
		default:
			out.WriteString(text[c.tok.start:c.tok.end])
		}
	}
	return out.String()
}

// maskPath replaces the segments of a call's path that look like values: they hold a digit, an
// escape or more than 40 bytes. A version (v2) is none.
func maskPath(text string) string {
	segments := strings.Split(text, "/")
	for i, s := range segments {
		version := strings.HasPrefix(s, "v") && strings.Trim(s[1:], "0123456789") == ""
		if i > 0 && !version && (strings.ContainsAny(s, "0123456789%") || len(s) > 40) {
			segments[i] = "?"
		}
	}
	return strings.Join(segments, "/")
}

// values moves over all of a text and finds the values among its tokens.
type values struct {
	lex lexer
	// tok is the current token, between its predecessor and its successor.
	prev, tok, ahead token
	depth            int
}

// advance moves to the next token.
func (c *values) advance() {
	switch c.tok.char {
	case '(':
		c.depth++
	case ')':
		c.depth--
	}
	c.prev, c.tok, c.ahead = c.tok, c.ahead, c.lex.next()
}

// isNumber reports whether tok is the number of a parameter, $1 or ?1.
func (c *values) isNumber() bool {
	return c.tok.typ == tokValue && (c.prev.char == '$' || c.prev.char == '?') && c.prev.end == c.tok.start
}

// isValue reports whether tok is, or could be, a literal, or begins a numbered parameter.
func (c *values) isValue() bool {
	switch c.tok.typ {
	case tokString:
		return true
	case tokValue:
		return isDigit(c.lex.text[c.tok.start])
	case tokPunct:
		return c.tok.char == '$' && c.ahead.typ == tokValue && c.tok.end == c.ahead.start
	case tokIdent:
		if c.lex.text[c.tok.start] != '"' || c.lex.flavor == Postgres {
			return false
		}
		switch c.prev.kw {
		case "INTO", "UPDATE", "FROM", "JOIN":
			return false
		}
		return c.prev.char != '.' && c.ahead.char != '.'
	}
	return false
}

// skipRow moves from a comma to the end of the row after it.
func (c *values) skipRow(depth int) {
	c.advance()
	for c.advance(); c.tok.typ != tokEOF && !(c.tok.char == ')' && c.depth == depth+1); c.advance() {
	}
}
