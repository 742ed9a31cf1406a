package console

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

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
