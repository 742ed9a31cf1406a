// Package safetext makes stored text safe to look at: what a terminal would obey,
// and what would make a text look like another, is escaped.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line escapes control characters, C1 included, invisible and direction-changing
// ones, and bytes that are not UTF-8. What it returns is one line.
func Line(s string) string { return escape(s, "") }

// Lines is Line that leaves line breaks and tabs as they are.
func Lines(s string) string { return escape(strings.ReplaceAll(s, "\r\n", "\n"), "\n\t") }

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
