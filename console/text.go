package console

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/internal/sqltext"
)

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
	s = safetext.Line(strings.Join(strings.Fields(s), " "))
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
		return p.Encoding + " " + safetext.Line(fmt.Sprint(p.Value))
	}
	return safetext.Lines(fmt.Sprint(p.Value))
}

// breaks are the words before which a line begins, and its depth.
var breaks = map[string]int{
	"FROM": 0, "WHERE": 0, "SET": 0, "VALUES": 0, "SELECT": 0, "INSERT": 0, "UPDATE": 0, "DELETE": 0, "REPLACE": 0, "MERGE": 0, "WITH": 0,
	"RETURNING": 0, "ORDER": 0, "GROUP": 0, "HAVING": 0, "LIMIT": 0, "USING": 0, "UNION": 0, "ON": 0, "WHEN": 1,
	"LEFT": 0, "INNER": 0, "JOIN": 0, "AND": 1, "OR": 1,
}

// joined are pairs of words between which no line ends: of UPDATE … SET the SET has one
// of its own, of DO UPDATE SET not.
var joined = map[string]bool{
	"DO UPDATE": true, "UPDATE SET": true, "KEY UPDATE": true, "LEFT JOIN": true, "INNER JOIN": true, "OUTER JOIN": true, "RIGHT JOIN": true,
}

// layOut breaks a statement into lines for reading. It changes only blanks: a
// text that already has lines keeps them, and so does what cannot be read as SQL.
// laid says whether it differs from what is sent.
func layOut(text string) (shown string, laid bool) {
	if len(text) > maxShown {
		return safetext.Lines(strings.ToValidUTF8(text[:maxShown], "")) + "…", true
	}
	if strings.Contains(strings.TrimSpace(text), "\n") {
		return safetext.Lines(text), false
	}
	var b strings.Builder
	at, depth := 0, 0
	previous := ""
	for tok := range sqltext.Tokens(sqltext.ANSI, 0, text) {
		gap, word := text[at:tok.Start], strings.ToUpper(tok.Text)
		at = tok.Start + len(tok.Text)
		if deep, breaking := breaks[word]; breaking && depth == 0 && b.Len() > 0 && gap != "" && strings.TrimSpace(gap) == "" && !joined[previous+" "+word] {
			gap, laid = "\n"+strings.Repeat("  ", deep), true
		}
		switch word {
		case "(":
			depth++
		case ")":
			depth--
		}
		b.WriteString(gap + tok.Text)
		previous = word
	}
	b.WriteString(text[at:])
	return safetext.Lines(b.String()), laid
}
