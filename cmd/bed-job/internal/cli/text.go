package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// printable escapes characters that a terminal would obey: control characters, invisible and
// direction-changing ones, and invalid UTF-8.
func printable(s string) string { return safetext.Line(s) }

// printableLines is printable, but keeps line breaks and tabs.
func printableLines(s string) string { return safetext.Lines(s) }

// oneLine makes s fit a table's cell of limit characters.
func oneLine(s string, limit int) string {
	return cut(printable(strings.Join(strings.Fields(s), " ")), limit)
}

func cut(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

// A spanFlag is a flag for a time in the form of the API: 90s, 36h or 7d.
type spanFlag time.Duration

func (s *spanFlag) Type() string   { return "duration" }
func (s *spanFlag) String() string { return time.Duration(*s).String() }
func (s *spanFlag) Set(text string) error {
	d, err := ops.ParseSpan(text)
	*s = spanFlag(d)
	return err
}

// span formats a time coarsely. A negative one, caused by differing clocks, becomes 0s.
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
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.RFC3339), span(now.Sub(t)))
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
