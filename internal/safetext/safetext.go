// Package safetext makes stored text safe to display: it escapes control sequences for a
// terminal, and characters that disguise a text.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line escapes control characters, C1 included, invisible and direction-changing ones, and
// bytes outside of UTF-8. Its result is one line.
func Line(s string) string { return escape(s, "") }

// Lines is Line but keeps line breaks and tabs.
func Lines(s string) string { return escape(strings.ReplaceAll(s, "\r\n", "\n"), "\n\t") }

// Cut shortens s to limit characters.
func Cut(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

func escape(s, keep string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
