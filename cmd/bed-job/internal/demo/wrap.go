package demo

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// The demo is made to be read beside other things: no line is wider than
// MaxWidth, and a terminal narrower than minWidth breaks lines itself.
const minWidth = 80

// MaxWidth is the most columns that a line of the demo has.
const MaxWidth = 100

// A wrapper breaks the lines of a text at blanks, none wider than width.
type wrapper struct {
	out   io.Writer
	width int
	line  []byte
}

func newWrapper(out io.Writer, width int) *wrapper {
	if width == 0 {
		width = MaxWidth
	}
	return &wrapper{out: out, width: min(max(width, minWidth), MaxWidth)}
}

func (w *wrapper) Write(p []byte) (int, error) {
	w.line = append(w.line, p...)
	for {
		end := bytes.IndexByte(w.line, '\n')
		if end < 0 {
			return len(p), nil
		}
		if _, err := io.WriteString(w.out, wrapped(string(w.line[:end]), w.width)+"\n"); err != nil {
			return 0, err
		}
		w.line = append(w.line[:0], w.line[end+1:]...)
	}
}

// wrapped breaks a line; what follows is indented further than the line. A
// word wider than all stays whole.
func wrapped(line string, width int) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))] + "    "
	var out strings.Builder
	for {
		at := breakAt(line, width)
		if at < 0 {
			return out.String() + line
		}
		out.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line = indent + strings.TrimLeft(line[at:], " ")
	}
}

// breakAt is where line has its last blank, after its indentation, that lets
// what is before it fit; -1 when it fits whole or has none.
func breakAt(line string, width int) int {
	column, at, text := 0, -1, false
	for i := 0; i < len(line); {
		if line[i] == 0x1b { // a colour takes no room
			if end := strings.IndexByte(line[i:], 'm'); end >= 0 {
				i += end + 1
				continue
			}
		}
		if column >= width && at >= 0 {
			return at
		}
		if line[i] != ' ' {
			text = true
		} else if text && column <= width && strings.TrimLeft(line[i:], " ") != "" {
			if column < width || at < 0 {
				at = i
			}
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
		column++
	}
	if column > width {
		return at
	}
	return -1
}
