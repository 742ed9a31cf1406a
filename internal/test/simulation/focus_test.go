package simulation

import (
	"slices"
	"strings"
)

// focus makes a history begin with a situation that chance alone seldom produces. Its log is a
// server.
type focus struct {
	kinds []kind
	begin func(*world)
	// wide: it may be as long as any, without faults and at least once. Others have
	// faults, and their writes are exactly once.
	wide bool
	// ordered: its writes are under order keys. inMemory: its log is.
	ordered, inMemory bool
	// home makes its writers change rows in the log's database, too.
	home bool
	// turns makes its writes compensable groups.
	turns bool
}

func (f *focus) isOrdered() bool { return f != nil && f.ordered }

func (f *focus) isHome() bool { return f != nil && f.home }

// locks reports whether its writes lock rows in the log that other actors need. At a real server
// they would wait.
func (f *focus) locks() bool { return f.isTurning() || f.isOrdered() }

func (f *focus) isTurning() bool { return f != nil && f.turns }

func (f *focus) isWide() bool { return f == nil || f.wide }

// endOfAKey repeats a request at the end of its key's retention, beside the purge that deletes its
// receipt.
var endOfAKey = &focus{
	kinds: slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !k.keyed || k.spans() }),
	begin: func(w *world) {
		w.send()
		w.runOn()
		w.slowLog = w.random.IntN(4) == 0
		w.againBesideAPurge()
		if w.slowLog {
			w.runOn()
			w.runOn()
		}
		w.slowLog = false
	},
}

// inDoubt leaves a write's attempt without an answer; the attempt may arrive late. Its sequel goes
// wrong too: the log goes down before or after, a retry or a decision fails or is lost, or a
// process is killed. Then jobs and an operator take over.
var inDoubt = &focus{
	kinds: append(slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.name == thatIsUndone }), slices.Repeat(kinds[:1], 4)...),
	begin: func(w *world) {
		var by *actor
		falls := w.random.IntN(8)
		for i, fates := range [][]fate{{isLost, answerIsLost, strays, strays}, faults, append([]fate{arrives}, faults...)} {
			if i == falls {
				w.kill(w.database)
			}
			if i == 0 {
				w.send()
				by = w.running[w.requests[0].sender()]
			}
			if m := w.runTo(by, (*message).leavesADoubt); m != nil {
				w.decide(m, pick(w, slices.DeleteFunc(slices.Clone(fates), func(f fate) bool { return f != arrives && !m.may(f) })))
			}
		}
		if w.random.IntN(3) == 0 {
			w.crash()
		}
		w.runTo(by, never)
		if w.database.down {
			w.rise(w.database)
		}
		for range 2 {
			w.allJobs()
			w.operator()
			w.late()
		}
	},
}

// leavesADoubt reports whether a write's outcome is unknown without an answer to this message.
func (m *message) leavesADoubt() bool {
	return !m.conn.s.server.isLog && (m.text == "COMMIT" || strings.HasPrefix(m.text, compoundStart) || strings.HasPrefix(m.text, "INSERT INTO bed_receipt "))
}

// late delivers the messages without a waiting sender.
func (w *world) late() {
	for _, m := range w.ordered() {
		if m.stray && w.random.IntN(2) == 0 {
			w.decide(m, arrives)
		}
	}
}
