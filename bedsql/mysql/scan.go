package mysql

import (
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// write is a call's text in the form for a compound statement.
type write struct {
	// text is the statement without the semicolon and the rest.
	text string
	// verb is INSERT, REPLACE, UPDATE or DELETE.
	verb string
	// params is its number of parameter markers.
	params int
	// table is the table of an INSERT or REPLACE, after its schema if named.
	table []string
	// rest has the columns named in an INSERT or REPLACE; all is set if it names none and so
	// sets every column.
	rest []sqltext.Token
	all  bool
	// auto is set if the table is known to have an AUTO_INCREMENT column.
	auto bool
	// updates is set for an INSERT with ON DUPLICATE KEY UPDATE.
	updates bool
	// repeatable is set if it may be prepared and executed repeatedly.
	repeatable bool
}

// generates reports whether it may generate an id.
func (w *write) generates() bool { return w.verb == "INSERT" || w.verb == "REPLACE" }

// readWrite reads a DML for a compound statement; false if it could have another meaning
// there, or if its end is uncertain. It rejects backslashes, which depend on the session's
// SQL mode, and executable comments, which depend on the server's version.
func readWrite(text string) (*write, bool) {
	if strings.IndexByte(text, '\\') >= 0 || strings.Contains(text, "/*!") || strings.Contains(text, "/*M!") || strings.IndexByte(text, 0) >= 0 {
		return nil, false
	}
	w := &write{}
	var tokens []sqltext.Token
	end := len(text)
	for t := range sqltext.Tokens(sqltext.MySQL, sqltext.BackslashIsPlain, text) {
		switch {
		case end < len(text): // another statement
			return nil, false
		case t.Kind == sqltext.Broken, t.Kind == sqltext.Var,
			t.Text == "@" && t.Kind == sqltext.Mark,
			t.Text == "$" && t.Kind == sqltext.Mark, // begins a name, but only to MySQL
			t.Kind == sqltext.Word && ownSession[strings.ToUpper(t.Text)]:
			return nil, false
		case t.Kind == sqltext.Mark && t.Text == ";":
			end = t.Start
			continue
		case t.Kind == sqltext.Param:
			w.params++
		}
		tokens = append(tokens, t)
	}
	w.text = text[:end]
	if len(tokens) == 0 || tokens[0].Kind != sqltext.Word {
		return nil, false
	}
	w.verb = strings.ToUpper(tokens[0].Text)
	w.repeatable = repeatable(w, tokens)
	switch w.verb {
	case "UPDATE", "DELETE":
		return w, true
	case "INSERT", "REPLACE":
		return w, w.readInsert(tokens[1:])
	}
	return nil, false
}

// repeatable reports whether a write uses one table and only expressions with a known stable
// result. MariaDB's functions may keep state from one execution to the next: after one input
// that is not text, JSON_OBJECT returns NULL for ever. LIMIT accepts more as a parameter
// than in the text.
func repeatable(w *write, tokens []sqltext.Token) bool {
	where, into := "SET", w.generates()
	if w.verb == "DELETE" {
		where = "WHERE"
	}
	target, limited := true, false
	for i, t := range tokens {
		before := tokens[max(i-1, 0)]
		switch {
		case t.Kind == sqltext.Word && unrepeatable[strings.ToUpper(t.Text)]:
			return false
		case t.Is(where), t.Is("VALUES"), t.Is("VALUE"):
			target = false
		case t.Is("LIMIT"):
			limited = true
		case t.Kind == sqltext.Param && limited:
			return false
		case t.Kind != sqltext.Mark:
		case t.Text == "," && target && !into:
			return false // another table
		case t.Text == "(" && target && into && before.IsName():
			target = false // the columns
		case t.Text == "(" && before.Kind == sqltext.Word && !beforeParenthesis[strings.ToUpper(before.Text)],
			t.Text == "(" && (before.Kind == sqltext.Quoted || before.Kind == sqltext.String):
			return false // a function
		}
	}
	return true
}

// unrepeatable are words that exclude a repeatable write: other tables, sequences, periods,
// compiled patterns.
var unrepeatable = map[string]bool{
	"SELECT": true, "JOIN": true, "STRAIGHT_JOIN": true, "USING": true, "UNION": true, "WITH": true, "TABLE": true,
	"NEXT": true, "FOR": true, "REGEXP": true, "RLIKE": true, "COLLATE": true,
}

// beforeParenthesis are the allowed words and functions before a parenthesis in a repeatable
// write.
var beforeParenthesis = map[string]bool{
	"VALUES": true, "VALUE": true, "IN": true, "AND": true, "OR": true, "NOT": true, "WHERE": true, "BETWEEN": true,
	"CASE": true, "WHEN": true, "THEN": true, "ELSE": true, "INTERVAL": true,
	"NOW": true, "CURRENT_TIMESTAMP": true, "UTC_TIMESTAMP": true,
	"COALESCE": true, "IFNULL": true, "IF": true, "CONCAT": true, "GREATEST": true, "LEAST": true,
}

// ownSession are words that return rows to the client, or read session state that the
// compound changes.
var ownSession = map[string]bool{
	"RETURNING": true, "LAST_INSERT_ID": true, "ROW_COUNT": true, "FOUND_ROWS": true, "SQL_CALC_FOUND_ROWS": true, "DELAYED": true,
}

// readInsert finds the table and the columns after INSERT or REPLACE.
func (w *write) readInsert(t []sqltext.Token) bool {
	i := 0
	for i < len(t) && slices.ContainsFunc([]string{"LOW_PRIORITY", "HIGH_PRIORITY", "IGNORE", "INTO"}, t[i].Is) {
		i++
	}
	for i < len(t) && t[i].IsName() {
		w.table = append(w.table, t[i].Name())
		i++
		if i == len(t) || t[i].Text != "." {
			break
		}
		i++
	}
	if len(w.table) == 0 || len(w.table) > 2 || i == len(t) {
		return false
	}
	for j := i; j+1 < len(t); j++ {
		if t[j].Is("ON") && t[j+1].Is("DUPLICATE") {
			w.updates = true
		}
	}
	if t[i].Is("PARTITION") {
		for i < len(t) && t[i].Text != ")" {
			i++
		}
		if i++; i >= len(t) {
			return false
		}
	}
	w.rest = t[i:]
	w.all = !w.rest[0].Is("SET") && (w.rest[0].Text != "(" || len(w.rest) == 1 || w.rest[1].Is("SELECT") || w.rest[1].Is("WITH") || w.rest[1].Is("VALUES"))
	if !w.all && w.rest[0].Text == "(" {
		w.rest = w.rest[:slices.IndexFunc(w.rest, func(t sqltext.Token) bool { return t.Text == ")" })+1]
	}
	return true
}

// names reports whether the write may set column.
func (w *write) names(column string) bool {
	return slices.ContainsFunc(w.rest, func(t sqltext.Token) bool {
		return (t.IsName() || t.Kind == sqltext.String) && strings.EqualFold(t.Name(), column)
	})
}
