package demo

import (
	"fmt"
	"io"
	"sync"

	"github.com/bedsql/bed/listener"
)

// A narrator tells what happens, a line at a time.
type narrator struct {
	mu    sync.Mutex
	out   io.Writer
	color bool
}

func (n *narrator) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, format+"\n", args...)
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
	n.say("      %-10s  %s", ev.DataSource, what)
}
