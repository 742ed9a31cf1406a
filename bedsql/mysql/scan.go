package mysql

import "strings"

// write is a call's text as it can stand in a compound statement.
type write struct {
	// text is the statement without the semicolon and what follows it.
	text string
	// verb is INSERT, REPLACE, UPDATE or DELETE.
	verb string
	// params is its number of parameter markers.
	params int
	// table is what an INSERT or REPLACE writes into, schema first if it is
	// named.
	table []string
	// columns are those that an INSERT or REPLACE names, in lower case; all is
	// set when it names none and so gives each a value.
	columns []string
	all     bool
	// auto is whether the table has an AUTO_INCREMENT column, once it was asked for.
	auto bool
	// updates is whether an INSERT has ON DUPLICATE KEY UPDATE.
	updates bool
	// repeatable is whether it may be prepared and executed again and again.
	repeatable bool
}

// generates reports whether it may generate an id.
func (w *write) generates() bool { return w.verb == "INSERT" || w.verb == "REPLACE" }

// readWrite reads a DML for a compound statement; false when it could mean
// something else there than on its own, or when its end cannot be told for
// sure. What a backslash does depends on the session's SQL mode, an executable
// comment on the server's version: texts with either are left alone.
func readWrite(text string) (*write, bool) {
	if strings.IndexByte(text, '\\') >= 0 || strings.Contains(text, "/*!") || strings.Contains(text, "/*M!") || strings.IndexByte(text, 0) >= 0 {
		return nil, false
	}
	s := scanner{text: text}
	w := &write{}
	var tokens []token
	end := len(text)
	for {
		t := s.next()
		if t.kind == tokenBroken {
			return nil, false
		}
		if t.kind == tokenEnd {
			break
		}
		if t.kind == tokenMark && t.text == ";" {
			end = t.start
			if s.next().kind != tokenEnd {
				return nil, false // another statement
			}
			break
		}
		switch {
		case t.kind == tokenParam:
			w.params++
		case t.kind == tokenMark && t.text == "@":
			return nil, false // a variable
		case t.kind == tokenWord && ownSession[strings.ToUpper(t.text)]:
			return nil, false
		}
		tokens = append(tokens, t)
	}
	w.text = text[:end]
	if len(tokens) == 0 || tokens[0].kind != tokenWord {
		return nil, false
	}
	w.verb = strings.ToUpper(tokens[0].text)
	w.repeatable = repeatable(w, tokens)
	switch w.verb {
	case "UPDATE", "DELETE":
		return w, true
	case "INSERT", "REPLACE":
		return w, w.readInsert(tokens[1:])
	}
	return nil, false
}

// repeatable reports whether a write is of one table and computes no more than
// what is known to give the same each time it is executed. MariaDB's functions
// may keep state from one execution to the next: JSON_OBJECT gives NULL for ever
// after it met bytes that are no text. LIMIT takes more as a parameter than in
// the text.
func repeatable(w *write, tokens []token) bool {
	where, into := "SET", w.generates()
	if w.verb == "DELETE" {
		where = "WHERE"
	}
	target, limited := true, false
	for i, t := range tokens {
		before := tokens[max(i-1, 0)]
		switch {
		case t.kind == tokenWord && unrepeatable[strings.ToUpper(t.text)]:
			return false
		case t.is(where), t.is("VALUES"), t.is("VALUE"):
			target = false
		case t.is("LIMIT"):
			limited = true
		case t.kind == tokenParam && limited:
			return false
		case t.kind != tokenMark:
		case t.text == "," && target && !into:
			return false // another table
		case t.text == "(" && target && into && before.isName():
			target = false // the columns
		case t.text == "(" && before.kind == tokenWord && !beforeParenthesis[strings.ToUpper(before.text)],
			t.text == "(" && (before.kind == tokenQuoted || before.kind == tokenString):
			return false // a function
		}
	}
	return true
}

// unrepeatable are words of what a repeatable write has not: other tables,
// sequences, periods, patterns that are compiled.
var unrepeatable = map[string]bool{
	"SELECT": true, "JOIN": true, "STRAIGHT_JOIN": true, "USING": true, "UNION": true, "WITH": true, "TABLE": true,
	"NEXT": true, "FOR": true, "REGEXP": true, "RLIKE": true, "COLLATE": true,
}

// beforeParenthesis are the words and functions that a parenthesis may follow
// in a repeatable write.
var beforeParenthesis = map[string]bool{
	"VALUES": true, "VALUE": true, "IN": true, "AND": true, "OR": true, "NOT": true, "WHERE": true, "BETWEEN": true,
	"CASE": true, "WHEN": true, "THEN": true, "ELSE": true, "INTERVAL": true,
	"NOW": true, "CURRENT_TIMESTAMP": true, "UTC_TIMESTAMP": true,
	"COALESCE": true, "IFNULL": true, "IF": true, "CONCAT": true, "GREATEST": true, "LEAST": true,
}

// ownSession are the words that give rows back to the client, or that ask the
// session for what the compound changes.
var ownSession = map[string]bool{
	"RETURNING": true, "LAST_INSERT_ID": true, "ROW_COUNT": true, "FOUND_ROWS": true, "SQL_CALC_FOUND_ROWS": true, "DELAYED": true,
}

// readInsert finds the table and the columns of what follows INSERT or REPLACE.
func (w *write) readInsert(t []token) bool {
	i := 0
	for i < len(t) && t[i].kind == tokenWord {
		switch strings.ToUpper(t[i].text) {
		case "LOW_PRIORITY", "HIGH_PRIORITY", "IGNORE", "INTO":
			i++
			continue
		}
		break
	}
	for i < len(t) && t[i].isName() {
		w.table = append(w.table, t[i].name())
		i++
		if i == len(t) || t[i].text != "." {
			break
		}
		i++
	}
	if len(w.table) == 0 || len(w.table) > 2 || i == len(t) {
		return false
	}
	for j := i; j+1 < len(t); j++ {
		if t[j].is("ON") && t[j+1].is("DUPLICATE") {
			w.updates = true
		}
	}
	if t[i].is("PARTITION") {
		for i < len(t) && t[i].text != ")" {
			i++
		}
		i++
	}
	w.all = true
	switch {
	case i+1 < len(t) && t[i].text == "(" && t[i+1].text == ")":
		w.all = false // INSERT INTO t () VALUES ()
	case i+1 < len(t) && t[i].text == "(" && t[i+1].isName() && !t[i+1].is("SELECT") && !t[i+1].is("WITH") && !t[i+1].is("VALUES"):
		w.all = false
		w.readColumns(t[i+1:], ")")
	case i < len(t) && t[i].is("SET"):
		w.all = false
		w.readColumns(t[i+1:], "")
	}
	return true
}

// readColumns reads the names before a "," or end, or those that are assigned
// to when end is empty.
func (w *write) readColumns(t []token, end string) {
	depth, fresh, name := 0, true, ""
	for i, tok := range t {
		switch {
		case depth == 0 && end != "" && tok.text == end && tok.kind == tokenMark:
			w.columns = append(w.columns, name)
			return
		case tok.kind == tokenMark && tok.text == "(":
			depth++
		case tok.kind == tokenMark && tok.text == ")":
			depth--
		case depth == 0 && tok.kind == tokenMark && tok.text == ",":
			if end != "" {
				w.columns = append(w.columns, name)
			}
			fresh, name = true, ""
		case fresh && tok.kind == tokenString:
			w.all = true // a name between double quotes, or nothing we know
		case fresh && tok.isName():
			name = strings.ToLower(tok.name())
			if i+1 == len(t) || t[i+1].text != "." {
				fresh = false
				if end == "" {
					w.columns = append(w.columns, name)
				}
			}
		}
	}
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenBroken
	tokenWord
	tokenQuoted // `a name`
	tokenString // or, with ANSI_QUOTES, "a name"
	tokenParam
	tokenMark
)

type token struct {
	kind  tokenKind
	text  string
	start int
}

func (t token) is(word string) bool { return t.kind == tokenWord && strings.EqualFold(t.text, word) }

func (t token) isName() bool { return t.kind == tokenWord || t.kind == tokenQuoted }

func (t token) name() string {
	if t.kind == tokenQuoted || t.kind == tokenString {
		q := t.text[:1]
		return strings.ReplaceAll(t.text[1:len(t.text)-1], q+q, q)
	}
	return t.text
}

// scanner cuts a text without backslashes into tokens; blanks and comments are
// none.
type scanner struct {
	text string
	pos  int
}

func (s *scanner) next() token {
	if !s.skipBlank() {
		return token{kind: tokenBroken, start: s.pos}
	}
	start := s.pos
	if start == len(s.text) {
		return token{kind: tokenEnd, start: start}
	}
	kind := tokenMark
	switch c := s.text[start]; {
	case c == '?':
		kind = tokenParam
		s.pos++
	case c == '\'' || c == '"' || c == '`':
		kind = tokenString
		if c == '`' {
			kind = tokenQuoted
		}
		if !s.quoted(c) {
			kind = tokenBroken
		}
	case isNameByte(c):
		kind = tokenWord
		for s.pos < len(s.text) && isNameByte(s.text[s.pos]) {
			s.pos++
		}
	default:
		s.pos++
	}
	return token{kind: kind, text: s.text[start:s.pos], start: start}
}

// quoted moves behind the quote that starts at pos; a doubled one is a
// character.
func (s *scanner) quoted(quote byte) bool {
	for i := s.pos + 1; i < len(s.text); i++ {
		if s.text[i] != quote {
			continue
		}
		if i+1 < len(s.text) && s.text[i+1] == quote {
			i++
			continue
		}
		s.pos = i + 1
		return true
	}
	s.pos = len(s.text)
	return false
}

func (s *scanner) skipBlank() bool {
	for s.pos < len(s.text) {
		rest := s.text[s.pos:]
		switch {
		case rest[0] <= ' ':
			s.pos++
		case rest[0] == '#' || strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' '):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				s.pos = len(s.text)
				return true
			}
			s.pos += n + 1
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return false
			}
			s.pos += n + 4
		default:
			return true
		}
	}
	return true
}

func isNameByte(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
