package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

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

// block writes a row as a block: its first cell, the others with their headings, and long cells on
// lines of their own.
func (t *table) block(b *strings.Builder, row []string) {
	line := cut(row[0], t.width) + "\n "
	for i, cell := range row {
		long, room := i >= len(row)-t.long, t.width-3 // two blanks before it, a comma after it
		if long {
			room++
		}
		text := cut(strings.ToLower(t.headings[i])+" "+cell, room)
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
