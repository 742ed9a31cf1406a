package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// printable escapes what a terminal would obey instead of show: control
// characters, invisible and direction-changing ones, bytes that are no UTF-8.
func printable(s string) string { return escape(s, "") }

// printableLines is printable that leaves line breaks and tabs as they are.
func printableLines(s string) string { return escape(strings.ReplaceAll(s, "\r\n", "\n"), "\n\t") }

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

// oneLine makes s fit a table's cell of limit characters.
func oneLine(s string, limit int) string {
	s = printable(strings.Join(strings.FieldsFunc(s, isSpace), " "))
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// age says how long ago t is, coarsely. Clocks that differ give 0s.
func age(now, t time.Time) string { return span(now.Sub(t)) }

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d/time.Hour))
	default:
		return fmt.Sprintf("%dd", int(d/(24*time.Hour)))
	}
}

// when shows a time of the past with its age; "-" for none.
func when(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.RFC3339), age(now, t))
}

// until shows a time to come; "-" for none.
func until(now, t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case t.After(now):
		return fmt.Sprintf("%s (in %s)", t.Local().Format(time.RFC3339), span(t.Sub(now)))
	default:
		return fmt.Sprintf("%s (due)", t.Local().Format(time.RFC3339))
	}
}
