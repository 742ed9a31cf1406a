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

// A table is shown in columns if these fit, else as a block for each row.
type table struct {
	width    int // 0: no limit
	headings []string
	// least are how wide the last columns must be at least; they are cut to what the
	// width leaves. The others are never cut.
	least []int
	rows  [][]string
	// headed: its headings were printed, or blocks, which have none.
	headed bool
}

// gap is how much space is between two columns.
const gap = 2

// add adds a row; empty cells are shown as "-".
func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(oneLine(cell, 1<<30), "-")
	}
	t.rows = append(t.rows, cells)
}

// print writes the rows that were added since it last did so, the first time under headings.
func (t *table) print(to io.Writer) error {
	widths := make([]int, len(t.headings))
	for _, r := range append(t.rows, t.headings) {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	if t.width == 0 || t.fit(widths) {
		w := tabwriter.NewWriter(&b, 0, 0, gap, ' ', 0)
		if !t.headed {
			t.rows = slices.Insert(t.rows, 0, t.headings)
		}
		for _, r := range t.rows {
			for i := range r {
				r[i] = cut(r[i], widths[i])
			}
			fmt.Fprintln(w, strings.Join(r, "\t"))
		}
		_ = w.Flush()
	} else {
		for _, r := range t.rows {
			t.block(&b, r)
		}
	}
	t.rows, t.headed = nil, true
	_, err := io.WriteString(to, b.String())
	return err
}

// fit shares what the width leaves among the columns that may be cut. It reports
// whether that is enough.
func (t *table) fit(widths []int) bool {
	fixed := len(widths) - len(t.least)
	left := t.width - gap*(len(widths)-1)
	for _, n := range widths[:fixed] {
		left -= n
	}
	for i, least := range t.least {
		n := &widths[fixed+i]
		least = min(least, *n)
		room := left
		if i < len(t.least)-1 {
			room = max(least, left*2/5)
		}
		if *n = min(*n, room); *n < least {
			return false
		}
		left -= *n
	}
	return left >= 0
}

// block writes a row as a block: its first cell, the others with their headings,
// and what may be cut on lines of its own.
func (t *table) block(b *strings.Builder, row []string) {
	line := cut(row[0], t.width) + "\n "
	for i, cell := range row {
		text := cut(strings.ToLower(t.headings[i])+" "+cell, t.width-gap-1)
		switch long := i >= len(row)-len(t.least); {
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
