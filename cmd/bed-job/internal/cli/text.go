package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// printable escapes characters that a terminal would obey: control characters, invisible and
// direction-changing ones, and invalid UTF-8.
func printable(s string) string { return safetext.Line(s) }

// oneLine makes s fit a table's cell of limit characters.
func oneLine(s string, limit int) string {
	return safetext.Cut(printable(strings.Join(strings.Fields(s), " ")), limit)
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

// A table is printed in columns if these fit, else with a block for each row.
type table struct {
	width    int // 0: no limit
	headings []string
	// long is the number of last columns on lines of their own in a block.
	long int
	rows [][]string
	// notes are lines below rows, by row number; they are never cut.
	notes map[int]string
	// headed reports that the headings, or blocks, have been printed.
	headed bool
}

// add adds a row; empty cells are shown as "-".
func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(oneLine(cell, 1<<30), "-")
	}
	t.rows = append(t.rows, cells)
}

// under adds a line below the last row.
func (t *table) under(text string) {
	if t.notes == nil {
		t.notes = map[int]string{}
	}
	t.notes[len(t.rows)-1] = "  " + printable(text) + "\n"
}

// print writes the rows added since its last call, on the first call under headings.
func (t *table) print(to io.Writer) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if !t.headed {
		fmt.Fprintln(w, strings.Join(t.headings, "\t"))
	}
	for _, r := range t.rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	_ = w.Flush()
	tooWide := func(line string) bool { return utf8.RuneCountInString(line) > t.width }
	lines := strings.SplitAfter(b.String(), "\n")
	blocks := t.width > 0 && slices.ContainsFunc(lines, func(line string) bool { return tooWide(strings.TrimSuffix(line, "\n")) })
	b.Reset()
	if heading := len(lines) - 1 - len(t.rows); !blocks {
		b.WriteString(strings.Join(lines[:heading], ""))
		lines = lines[heading:]
	}
	for i, r := range t.rows {
		if blocks {
			t.block(&b, r)
		} else {
			b.WriteString(lines[i])
		}
		b.WriteString(t.notes[i])
	}
	t.rows, t.notes, t.headed = nil, nil, true
	_, err := io.WriteString(to, b.String())
	return err
}

// print writes a list as JSON or as a table; for an empty table it says so to the operator.
func (a *app) print(list any, t *table, empty string) (err error) {
	switch {
	case a.json():
		return printJSON(a.Out, list)
	case len(t.rows) == 0:
		_, err = fmt.Fprintln(a.Err, empty)
	default:
		t.width = a.width()
		err = t.print(a.Out)
	}
	return err
}

// block writes a row as a block: its first cell, the others with their headings, and long cells on
// lines of their own.
func (t *table) block(b *strings.Builder, row []string) {
	line := safetext.Cut(row[0], t.width) + "\n "
	for i, cell := range row {
		long, room := i >= len(row)-t.long, t.width-3 // two blanks before it, a comma after it
		if long {
			room++
		}
		text := safetext.Cut(strings.ToLower(t.headings[i])+" "+cell, room)
		switch {
		case i == 0 || cell == "-":
		case line == " " || !long && strings.HasSuffix(line, "\n "):
			line += " " + text
		case !long && utf8.RuneCountInString(line[strings.LastIndexByte(line, '\n')+1:]+text)+3 <= t.width:
			line += ", " + text
		default:
			if b.WriteString(strings.TrimSuffix(line, "\n ")); !long {
				b.WriteString(",")
			}
			line = "\n  " + text
		}
	}
	b.WriteString(strings.TrimSuffix(line, "\n ") + "\n")
}
