package sqltext

import "strings"

// Shape is [Mask] that also leaves out how many rows a VALUES lists, and how
// parameters are numbered: texts that differ in their values and in their number
// of rows only become the same.
func Shape(f Flavor, text string) string {
	c := cursor{lex: lexer{text: text, flavor: f}, end: len(text)}
	c.tok, c.ahead = c.read(), token{}
	c.ahead = c.read()
	var out strings.Builder
	rows := -1 // the depth of the rows of the VALUES that is being read
	for ; !c.atEnd(); c.advance() {
		switch {
		case c.isNumber():
			continue // behind its $ or ?
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

// skipRow moves from a comma to the end of the row behind it.
func (c *cursor) skipRow(depth int) {
	c.advance()
	for c.advance(); !c.atEnd() && !(c.tok.char == ')' && c.depth == depth+1); c.advance() {
	}
}

// isNumber reports whether tok is that of a parameter.
func (c *cursor) isNumber() bool {
	return c.tok.typ == tokValue && (c.prev[0].char == '$' || c.prev[0].char == '?') && c.prev[0].end == c.tok.start
}
