package console

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/internal/sqltext"
)

func safeLine(s string) string { return safetext.Line(s) }

func safeLines(s string) string { return safetext.Lines(s) }

// maxShown is how much of one text a page shows.
const maxShown = 200_000

// oneLine is the beginning of an entry's SQL.
func oneLine(e ops.Entry) string {
	if len(e.Statements) == 0 {
		return ""
	}
	text := clip(e.Statements[0].SQL, 160)
	if more := len(e.Statements) - 1; more > 0 {
		text += fmt.Sprintf(" (+%d)", more)
	}
	return text
}

// brief is the beginning of an error.
func brief(s string) string { return clip(s, 240) }

func clip(s string, n int) string {
	if len(s) > 8*n {
		s = strings.ToValidUTF8(s[:8*n], "")
	}
	s = safeLine(strings.Join(strings.Fields(s), " "))
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// valueText is a parameter's value, or a mask.
func valueText(p ops.Parameter) string {
	switch {
	case p.Type == "null":
		return "NULL"
	case p.Value == nil:
		return "••••"
	case p.Encoding != "":
		return p.Encoding + " " + safeLine(fmt.Sprint(p.Value))
	}
	return safeLines(fmt.Sprint(p.Value))
}

// A piece is a part of a statement as it is shown.
type piece struct {
	// Class is the style's: kw, str, num, par; empty for the rest.
	Class, Text string
}

// breaks are the words before which a line begins, and its depth.
var breaks = map[string]int{
	"FROM": 0, "WHERE": 0, "SET": 0, "VALUES": 0, "SELECT": 0, "INSERT": 0, "UPDATE": 0, "DELETE": 0, "REPLACE": 0, "MERGE": 0, "WITH": 0,
	"RETURNING": 0, "ORDER": 0, "GROUP": 0, "HAVING": 0, "LIMIT": 0, "USING": 0, "UNION": 0, "ON": 0, "WHEN": 1,
	"LEFT": 0, "INNER": 0, "JOIN": 0, "AND": 1, "OR": 1,
}

// keywords are shown as such beside those of breaks.
var keywords = map[string]bool{
	"INTO": true, "AS": true, "NOT": true, "NULL": true, "IN": true, "IS": true, "LIKE": true, "BETWEEN": true, "BY": true, "CONFLICT": true,
	"DO": true, "NOTHING": true, "DUPLICATE": true, "KEY": true, "THEN": true, "ELSE": true, "END": true, "CASE": true, "EXISTS": true,
	"MATCHED": true, "IGNORE": true, "DEFAULT": true, "ASC": true, "DESC": true, "DISTINCT": true, "RIGHT": true, "OUTER": true, "TRUE": true, "FALSE": true,
}

// layOut breaks a statement into lines for reading. It changes only blanks: a
// text that already has lines keeps them, and so does what cannot be read as SQL.
// laid says whether it differs from what is sent.
func layOut(text string) (pieces []piece, laid bool) {
	if len(text) > maxShown {
		return []piece{{"", safeLines(strings.ToValidUTF8(text[:maxShown], "")) + "…"}}, true
	}
	own := !strings.ContainsAny(strings.TrimSpace(text), "\n")
	at, depth := 0, 0
	previous := ""
	add := func(class, s string) { pieces = append(pieces, piece{class, safeLines(s)}) }
	for tok := range sqltext.Tokens(sqltext.ANSI, 0, text) {
		gap := text[at:tok.Start]
		at = tok.Start + len(tok.Text)
		word := ""
		if tok.Kind == sqltext.Word {
			word = strings.ToUpper(tok.Text)
		}
		deep, breaking := breaks[word]
		// SET of UPDATE … SET, not that of DO UPDATE SET; ON of a join or CONFLICT.
		breaking = breaking && own && depth == 0 && len(pieces) > 0 && strings.TrimSpace(gap) == "" && gap != "" &&
			!(previous == "DO" && word == "UPDATE") && !(previous == "UPDATE" && word == "SET") &&
			!(word == "JOIN" && (previous == "LEFT" || previous == "INNER" || previous == "OUTER" || previous == "RIGHT")) &&
			!(word == "UPDATE" && previous == "KEY")
		if breaking {
			gap, laid = "\n"+strings.Repeat("  ", deep), true
		}
		if gap != "" {
			add("", gap)
		}
		switch tok.Text {
		case "(":
			depth++
		case ")":
			depth--
		}
		switch {
		case breaking || keywords[word] || word != "" && deepKnown(word):
			add("kw", tok.Text)
		case tok.Kind == sqltext.String:
			add("str", tok.Text)
		case tok.Kind == sqltext.Param || tok.Kind == sqltext.Var:
			add("par", tok.Text)
		case word != "" && word[0] >= '0' && word[0] <= '9':
			add("num", tok.Text)
		default:
			add("", tok.Text)
		}
		if word != "" {
			previous = word
		} else {
			previous = tok.Text
		}
	}
	if at < len(text) {
		add("", text[at:])
	}
	return pieces, laid
}

func deepKnown(word string) bool {
	_, ok := breaks[word]
	return ok
}
