package simulation

import (
	"context"
	"errors"
	"slices"

	"github.com/bedsql/bed/bedsql"
)

// This file has the histories of writers under order keys.

// inOrder disturbs writes under order keys: an attempt comes late, a job or another actor gets in
// the way, and an operator may discard an entry before others under its key go on. The log is in
// memory.
var inOrder = &focus{kinds: orderedKinds, wide: true, ordered: true, inMemory: true, begin: beginOrder}

// inOrderInSQL is the same with the log in SQL, and entries in a transaction at the log.
var inOrderInSQL = &focus{kinds: append(slices.Clone(orderedKinds), withKinds[:4]...), wide: true, ordered: true, home: true, begin: beginOrder}

var orderedKinds = []kind{kinds[0], kinds[2], kinds[7], kinds[0], kinds[0]}

func beginOrder(w *world) {
	if w.calm || w.random.IntN(2) == 0 {
		return
	}
	w.send()
	if m := w.runTo(w.running[w.requests[0].sender()], (*message).leavesADoubt); m != nil {
		w.decide(m, pick(w, []fate{isLost, strays, strays}))
	}
	w.crash()
	w.pause(2 * lease)
	if w.random.IntN(2) == 0 {
		w.givesUp()
	}
	for range 2 {
		w.send()
		w.runTo(w.running[w.requests[len(w.requests)-1].sender()], never)
		w.allJobs()
	}
	w.late()
}

// givesUp lets an operator discard the log's entries.
func (w *world) givesUp() {
	for _, u := range w.look() {
		r := w.requestOf(u)
		w.say("an operator discards the log of %s", r)
		r.discarded = true
		w.begin("operator", w.people, func(ctx context.Context) { _ = w.people.log.Discard(ctx, u.id) })
		w.runTo(w.running["operator"], never)
	}
}

// isBehind reports whether err means waiting for an earlier write.
func isBehind(err error) bool {
	var behind *bedsql.BehindError
	return errors.As(err, &behind)
}
