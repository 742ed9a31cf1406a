package sqltext

import "strings"

type tokenType uint8

const (
	tokEOF tokenType = iota
	tokPunct
	tokWord    // an unquoted identifier or keyword
	tokIdent   // a quoted identifier
	tokString  // a string literal
	tokValue   // a number or a parameter
	tokUserVar // MySQL's @name
	tokSysVar  // MySQL's @@, without what follows
	tokAssign  // MySQL's :=
)

// token is a piece of code; blanks and comments are not tokens.
type token struct {
	typ        tokenType
	char       byte    // of a tokPunct, else 0
	kw         keyword // of a tokWord, else empty
	start, end int
}

// lexer cuts a text into tokens. The zero value with text and flavor is ready.
type lexer struct {
	text   string
	pos    int
	flavor Flavor
	// quoting is the session's quoting.
	quoting Quoting
	// executable counts the open /*! of MySQL, unless skipExecutable treats them as comments.
	executable     int
	skipExecutable bool
	// broken is set if a quote or comment did not end.
	broken bool
	// orders receives the comments that are orders to the database; nil if they do not matter.
	orders *strings.Builder
}

func (l *lexer) at(i int) byte {
	if i < len(l.text) {
		return l.text[i]
	}
	return 0
}

func (l *lexer) next() token {
	l.skipBlank()
	start := l.pos
	if start >= len(l.text) {
		return token{start: len(l.text), end: len(l.text)}
	}
	c := l.text[start]
	t := token{typ: tokPunct, start: start}
	switch {
	case isWordStart(c):
		return l.word()
	case isDigit(c):
		t.typ = tokValue
		l.skipName('.')
	case c == '\'':
		t.typ = tokString
		l.quoted('\'', l.backslashEscapes())
	case c == '"':
		t.typ = tokIdent
		if l.flavor == MySQL && l.quoting&QuotesAreNames == 0 {
			t.typ = tokString
		}
		l.quoted('"', t.typ == tokString && l.backslashEscapes())
	case c == '`' && l.flavor != Postgres:
		t.typ = tokIdent
		l.quoted('`', false)
	case c == '[' && l.flavor == SQLite:
		t.typ = tokIdent
		l.until(start+1, "]")
	case c == '$' && l.flavor == Postgres && l.dollarQuoted():
		t.typ = tokString
	case c == '@' && l.flavor == MySQL && l.at(start+1) == '@':
		t.typ = tokSysVar
		l.pos += 2
	case c == '@' && l.flavor == MySQL && l.userVar():
		t.typ = tokUserVar
	case c == ':' && l.flavor == MySQL && l.at(start+1) == '=':
		t.typ = tokAssign
		l.pos += 2
	case (c == ':' || c == '@' || c == '$') && (l.flavor == SQLite || l.flavor == ANSI) && isName(l.at(start+1)):
		// A parameter's name is never a keyword.
		t.typ = tokValue
		l.pos++
		l.skipName(0)
	default:
		t.char = c
		l.pos++
	}
	t.end = l.pos
	return t
}

// backslashEscapes applies to a string without a prefix.
func (l *lexer) backslashEscapes() bool {
	return l.flavor == MySQL && l.quoting&BackslashIsPlain == 0 || l.flavor == Postgres && l.quoting&BackslashEscapes != 0
}

// word reads an identifier, or the literal that it is the prefix of.
func (l *lexer) word() token {
	t := token{typ: tokWord, start: l.pos}
	l.skipName(0)
	if l.flavor == Postgres && l.pos-t.start == 1 {
		switch c, after, quote := l.text[t.start]|0x20, l.at(l.pos), l.at(l.pos+1); {
		case c == 'e' && after == '\'':
			t.typ = tokString
			l.quoted('\'', true)
			for l.continued() {
				l.quoted('\'', true)
			}
		case c == 'u' && after == '&' && (quote == '\'' || quote == '"'):
			t.typ = tokString
			if quote == '"' {
				t.typ = tokIdent
			}
			l.pos++
			l.quoted(quote, false)
		}
	}
	if t.typ == tokWord {
		t.kw = lookup(l.text[t.start:l.pos])
	}
	t.end = l.pos
	return t
}

// skipName moves past the characters of a name and extra, unless extra is 0.
func (l *lexer) skipName(extra byte) {
	for l.pos < len(l.text) {
		c := l.text[l.pos]
		if !isName(c) && (extra == 0 || c != extra) {
			return
		}
		l.pos++
	}
}

// quoted moves past the quote that starts at pos. A doubled quote is a character, and so is
// a quote after an escaping backslash.
func (l *lexer) quoted(quote byte, backslash bool) {
	i := l.pos + 1
	for i < len(l.text) {
		switch c := l.text[i]; {
		case c == '\\' && backslash:
			i++
		case c == quote && l.at(i+1) == quote:
			i++
		case c == quote:
			l.pos = i + 1
			return
		}
		i++
	}
	l.pos = len(l.text)
	l.broken = true
}

// continued moves to the quote that continues PostgreSQL's string on another line. It skips
// comments that end with their line, and returns false if there is no such quote.
func (l *lexer) continued() bool {
	newline := false
	for i := l.pos; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == '\n' || c == '\r':
			newline = true
		case c <= ' ':
		case c == '-' && l.at(i+1) == '-':
			n := strings.IndexAny(l.text[i:], "\r\n")
			if n < 0 {
				return false
			}
			i += n - 1
		case c == '\'' && newline:
			l.pos = i
			return true
		default:
			return false
		}
	}
	return false
}

// until moves past the next end at or after i.
func (l *lexer) until(i int, end string) {
	n := strings.Index(l.text[min(i, len(l.text)):], end)
	if n < 0 {
		l.pos = len(l.text)
		l.broken = true
		return
	}
	l.pos = i + n + len(end)
}

// dollarQuoted moves past a $tag$…$tag$, if one starts at pos.
func (l *lexer) dollarQuoted() bool {
	i := l.pos + 1
	if c := l.at(i); c != '$' && !isWordStart(c) {
		return false
	}
	for i < len(l.text) && isName(l.text[i]) && l.text[i] != '$' {
		i++
	}
	if l.at(i) != '$' {
		return false
	}
	l.until(i+1, l.text[l.pos:i+1])
	return true
}

// userVar moves past MySQL's @name, if one starts at pos. The host of an account
// (root@localhost) looks the same.
func (l *lexer) userVar() bool {
	switch c := l.at(l.pos + 1); {
	case c == '\'' || c == '"' || c == '`':
		l.pos++
		l.quoted(c, c != '`' && l.backslashEscapes())
	case isName(c) || c == '.':
		l.pos++
		l.skipName('.')
	default:
		return false
	}
	return true
}

const byteOrderMark = "\ufeff"

// skipBlank moves past blanks and comments. An executable comment of MySQL is code: it skips
// only the marks.
func (l *lexer) skipBlank() {
	for l.pos < len(l.text) {
		start, c, after := l.pos, l.text[l.pos], l.at(l.pos+1)
		switch {
		case c <= ' ':
			l.pos++
		case c == byteOrderMark[0] && strings.HasPrefix(l.text[l.pos:], byteOrderMark):
			l.pos += len(byteOrderMark)
		case c == '#' && l.flavor == MySQL:
			l.skipLine()
		case c == '-' && after == '-' && (l.flavor != MySQL || l.at(l.pos+2) <= ' '):
			l.skipLine()
		case c == '*' && after == '/' && l.executable > 0:
			l.executable--
			l.pos += 2
		case c == '/' && after == '*':
			if !l.openExecutable() {
				l.skipComment()
			}
		default:
			return
		}
		if comment := l.text[start:l.pos]; l.orders != nil && isOrder(comment) {
			l.orders.WriteString(" " + comment)
		}
	}
}

func (l *lexer) skipLine() {
	ends := "\n"
	if l.flavor == Postgres {
		ends = "\r\n"
	}
	n := strings.IndexAny(l.text[l.pos:], ends)
	if n < 0 {
		l.pos = len(l.text)
		return
	}
	l.pos += n + 1
}

func (l *lexer) openExecutable() bool {
	i := l.pos + 2
	if l.flavor != MySQL || l.skipExecutable {
		return false
	}
	if l.at(i) == 'M' {
		i++
	}
	if l.at(i) != '!' {
		return false
	}
	i++
	// A version has five or six digits; fewer are code.
	digits := 0
	for digits < 6 && isDigit(l.at(i+digits)) {
		digits++
	}
	if digits >= 5 {
		i += digits
	}
	l.pos = i
	l.executable++
	return true
}

func (l *lexer) skipComment() {
	if l.flavor != Postgres {
		broken := l.broken
		l.until(l.pos+2, "*/")
		if l.flavor == SQLite {
			// SQLite lets a comment run to the end of the text.
			l.broken = broken
		}
		return
	}
	depth := 0
	for i := l.pos; i < len(l.text); i++ {
		switch {
		case l.text[i] == '/' && l.at(i+1) == '*':
			depth++
			i++
		case l.text[i] == '*' && l.at(i+1) == '/':
			depth--
			i++
			if depth == 0 {
				l.pos = i + 1
				return
			}
		}
	}
	l.pos = len(l.text)
	l.broken = true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWordStart(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c >= 0x80
}

func isName(c byte) bool { return isWordStart(c) || isDigit(c) || c == '$' }
