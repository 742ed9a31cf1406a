package demo

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/bedsql/bed/listener"
)

// The demo is made to be read beside other things: no line is wider than
// maxWidth, and a terminal narrower than minWidth breaks lines itself.
const minWidth, maxWidth = 80, 100

// Columns is how wide the lines of the demo are on a terminal; 0 is for none.
func Columns(terminal int) int {
	if terminal == 0 {
		return maxWidth
	}
	return min(max(terminal, minWidth), maxWidth)
}

// A narrator tells what happens, a line at a time.
type narrator struct {
	mu    sync.Mutex
	out   io.Writer
	width int
	color bool
	again string // the event said last: said once when it repeats itself
}

func (n *narrator) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.again = ""
	n.print(fmt.Sprintf(format, args...))
}

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// print breaks lines at blanks; what follows is indented further. A word wider than all
// stays whole.
func (n *narrator) print(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		words := strings.TrimLeft(line, " ")
		column := len(line) - len(words)
		indent := strings.Repeat(" ", column)
		out := indent
		for word := range strings.SplitAfterSeq(words, " ") {
			plain := colors.ReplaceAllString(word, "")
			if column > len(indent) && column+utf8.RuneCountInString(strings.TrimRight(plain, " ")) > n.width {
				out = strings.TrimRight(out, " ") + "\n" + indent + "    "
				column = len(indent) + 4
			}
			out += word
			column += utf8.RuneCountInString(plain)
		}
		fmt.Fprintln(n.out, out)
	}
}

func (n *narrator) paint(code, s string) string {
	if !n.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (n *narrator) bold(s string) string  { return n.paint("1", s) }
func (n *narrator) green(s string) string { return n.paint("32", s) }
func (n *narrator) red(s string) string   { return n.paint("31", s) }

func (n *narrator) title(what, why string) {
	n.say("\n%s: %s", n.paint("1;36", what), why)
}

// event tells of one attempt.
func (n *narrator) event(ev listener.Event) {
	who := map[listener.Origin]string{
		listener.Caller: "the call itself", listener.SyncRetry: "sync retry", listener.AsyncJob: "the job",
	}[ev.Origin]
	var what string
	switch ev.Type {
	case listener.BeforeExecute:
		if ev.Origin != listener.Caller {
			return
		}
		what = "the entry is durable, the write is sent"
	case listener.ExecuteSuccess:
		what = n.green("delivered") + " by " + who + ", its entry is removed"
		if ev.Found {
			what = n.green("delivered") + " already, its receipt is there: " + who + " only removes the entry"
		}
	case listener.ExecuteFailure:
		what = n.red("failed") + fmt.Sprintf(" (%s): %v", who, ev.Err)
	case listener.Parked:
		what = n.red("parked") + fmt.Sprintf(": %v", ev.Err)
	default:
		return
	}
	line := fmt.Sprintf("      %-10s  %s", ev.DataSource, what)
	n.mu.Lock()
	defer n.mu.Unlock()
	if line != n.again {
		n.again = line
		n.print(line)
	}
}
