package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql"
)

// This file has the compensable groups. A compensation changes a row of its own, so that the tables
// show both.

// turning are the ways to write so.
var turning = append([]kind{
	{"group of two data sources", false, false, []int{0, 1}, sendStaged, nil},
	{"group of three data sources", false, false, []int{0, 1, atLog, 1}, sendStaged, nil},
	{"group of which a part changes other rows", false, false, []int{0, 1, 0}, sendStaged, []need{anyRows, otherRows, oneRow}},
	{"group of which a part must be the first", false, false, []int{0, 0, 1}, sendStaged, []need{anyRows, theGate, anyRows}},
	{"group of which a part is forbidden", false, false, []int{0, 1, atLog}, sendStaged, []need{anyRows, anyRows, forbidden}},
	{"transaction with a group of which a part is forbidden", false, true, []int{atLog, 0, 1}, sendWith(withCommits), []need{anyRows, anyRows, forbidden}},
	{"transaction with a group of which a part must be the first", false, true, []int{atLog, 0, 1}, sendWith(withCommits), []need{anyRows, theGate, anyRows}},
}, withKinds[:len(withKinds)-1]...)

// aboutGroups disturbs groups: the application loses an answer at the worst moment of an End or is
// killed, messages arrive late, time passes, an operator compensates the group, and jobs take over.
var aboutGroups = &focus{
	kinds: turning, wide: true, home: true, turns: true,
	begin: func(w *world) {
		if w.calm || w.random.IntN(3) == 0 {
			return
		}
		w.send()
		w.inDoubt(w.requests[0].sender())
		for range 2 {
			pick(w, []func(*world){(*world).crash, (*world).compensate, (*world).time, (*world).runOn})(w)
		}
		for n := range w.jobs {
			w.pause(2 * lease)
			w.round(n)
			w.inDoubt(fmt.Sprintf("job %d", n))
		}
		w.late()
	},
}

// inDoubt lets an actor run to the next places where a lost answer leaves a doubt.
func (w *world) inDoubt(name string) {
	for range 1 + w.random.IntN(4) {
		if m := w.runTo(w.running[name], (*message).leavesADoubt); m != nil {
			w.decide(m, pick(w, []fate{arrives, arrives, isLost, answerIsLost, answerIsLost, strays}))
		}
	}
	w.runTo(w.running[name], never)
}

// canTurn adds compensations to most parts of a group, if the database allows them.
func (w *world) canTurn(r *request) {
	r.turnAfter = pick(w, []time.Duration{0, 0, 0, lease / 2, 3 * lease})
	for i, p := range r.parts {
		if w.random.IntN(8) > 0 || i == len(r.parts)-1 {
			p.undo = w.part(r, p.source, pick(w, []need{anyRows, anyRows, anyRows, anyRows, oneRow, oneRow, otherRows, forbidden}))
			p.undo.undoes = p
		}
	}
}

// options are those of Begin.
func (r *request) options(how bedsql.TxOption) []bedsql.TxOption {
	if r.turnAfter == 0 {
		return []bedsql.TxOption{how}
	}
	return []bedsql.TxOption{how, bedsql.CompensateAfter(r.turnAfter)}
}

// turns reports whether the group is compensable: a part was recorded with its compensation.
func (r *request) turns() bool {
	return slices.ContainsFunc(r.parts, func(p *part) bool { return p.undo != nil && r.said(p.undo) })
}

// mayTurn reports whether there is a reason to.
func (r *request) mayTurn() bool {
	return r.turned || r.turnAfter > 0 || slices.ContainsFunc(r.parts, func(p *part) bool { return p.need > oneRow })
}

func isUndone(err error) bool {
	var undone *bedsql.CompensatedError
	return errors.As(err, &undone)
}

// hasTurned reports whether err announces a compensation.
func hasTurned(err error) bool {
	var pending *bedsql.PendingError
	return isUndone(err) || errors.As(err, &pending) && pending.Compensating
}

// compensate lets an operator turn a group back.
func (w *world) compensate() {
	var some []*request
	for _, r := range w.requests {
		if r.turns() && r.group != "" {
			some = append(some, r)
		}
	}
	if len(some) == 0 || w.running["operator"] != nil {
		return
	}
	r := pick(w, some)
	r.turned = true // or will be, once this arrives
	w.say("an operator turns %s back", r)
	w.begin("operator", w.people, func(ctx context.Context) { _, _ = w.people.log.Compensate(ctx, r.group, 0, "an operator wants it") })
}

// undone is how many times a part was.
func (w *world) undone(p *part) int64 {
	if p.undo == nil {
		return 0
	}
	return w.applied(p.undo)
}

// undoes reports whether anything of a group undoes something in a data source.
func (r *request) undoes(source int) bool {
	return slices.ContainsFunc(r.parts, func(p *part) bool { return p.source == source && p.undo != nil && r.said(p.undo) })
}

// tells is r with the results of its parts.
func (r *request) tells(w *world) string {
	text := []string{r.String()}
	for _, p := range r.parts {
		text = append(text, fmt.Sprintf("row %d of %s is applied %d times and undone %d times", p.id, w.server(p.source).name, w.applied(p), w.undone(p)))
	}
	return strings.Join(text, ", ")
}

// halfCompensated reports whether a group may wait for an operator, because a compensation is refused.
func (r *request) halfCompensated() bool {
	return slices.ContainsFunc(r.parts, func(p *part) bool { return p.undo != nil && r.said(p.undo) && p.undo.need > oneRow })
}

// repair lets an operator lift the refusal of a group's compensation.
func (w *world) repair(r *request) {
	for _, p := range r.parts {
		if p.undo != nil && p.undo.need == forbidden && w.random.IntN(2) == 0 {
			w.say("row %d is forbidden no more", p.undo.id)
			p.undo.need = anyRows
			delete(w.server(p.source).forbidden, p.undo.id)
		}
	}
}
