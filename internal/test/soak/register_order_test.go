package soak

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operations on a register, a row of the table register: it holds a number, 0 at
// first. The other steps have none of them.
const (
	OpSet     = "set"
	OpAdd     = "add"
	OpAddRead = "add and read" // is answered with what the register then holds
	OpRead    = "read"         // changes nothing
	OpInOrder = "set in order" // under an order key of the register's
)

// FirstRegister is the lowest id of a register, above those of the accounts: an
// effect may name either.
const FirstRegister = 1000

// FirstInOrder is the id of the first register written only in order.
const FirstInOrder = 1_000_000

// operation is a step on a register, with its answer.
type operation struct {
	request  string
	op       string
	n        int64
	known    bool // the answer value
	value    int64
	at, done int64 // from when it may have taken effect, until when it has
	place    int   // among those that changed it, by what its target says; 0: a read
}

// never is later than all answers.
const never = math.MaxInt64 - 2

// register is the state of a register.
type register struct {
	holds   int64
	changes int
}

// model is a single register. With places, its changes come in the target's own order.
func model(places bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			r, o := state.(register), input.(operation)
			switch o.op {
			case OpSet, OpInOrder:
				r.holds = o.n
			case OpAdd, OpAddRead:
				r.holds += o.n
			}
			if places && o.place > 0 {
				if r.changes++; r.changes != o.place {
					return false, r
				}
			}
			return !o.known || o.value == r.holds, r
		},
	}
}

// patience is how long the judge tries one register.
const patience = 30 * time.Second

// check reports whether any order of the operations agrees with all answers. It first tries the
// target's own order, if there is one. A failure of that proves no violation: any other order will
// do.
func check(ops []operation) porcupine.CheckResult {
	history := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		history[i] = porcupine.Operation{ClientId: i, Input: o, Call: o.at, Return: o.done}
	}
	if porcupine.CheckOperationsTimeout(model(true), history, patience) == porcupine.Ok {
		return porcupine.Ok
	}
	return porcupine.CheckOperationsTimeout(model(false), history, patience)
}

// where names a register.
type where struct {
	target string
	id     int64
}

// operations are the known operations of each register: applied ones, and those reported as
// applied. An unanswered operation takes effect at any time after it was sent.
func (j *judgement) operations() map[where][]operation {
	all := map[where][]operation{}
	for _, r := range j.requests {
		for i, step := range r.Steps {
			if step.Op == "" {
				continue
			}
			o := operation{request: EffectName(r.Request, i), op: step.Op, n: step.N, at: never, done: never}
			told := false
			for _, s := range r.sends {
				o.at = min(o.at, s.At)
				if s.answer == nil || s.answer.Outcomes[i] != Delivered {
					continue
				}
				told, o.done = true, min(o.done, s.answer.At)
				if (step.Op == OpAddRead || step.Op == OpRead) && i < len(s.answer.Values) && s.answer.Values[i] >= 0 {
					o.known, o.value = true, s.answer.Values[i]
				}
			}
			if told || step.Op != OpRead && r.count(j, i) > 0 {
				at := where{step.Target, step.Account}
				all[at] = append(all[at], o)
			}
		}
	}
	return all
}

// registers demands that each register could have given its answers.
func (j *judgement) registers(targets map[string]Target) {
	all := j.operations()
	for name, t := range targets {
		for id, holds := range t.Registers {
			at := where{name, id}
			all[at] = append(all[at], operation{request: "the end", op: OpRead, known: true, value: holds, at: never + 1, done: never + 2})
		}
		places, order := map[string]int{}, slices.Clone(t.Effects)
		slices.SortFunc(order, func(a, b Effect) int { return int(a.ID - b.ID) })
		seen := map[int64]int{}
		for _, e := range order {
			seen[e.Account]++
			places[e.Name] = seen[e.Account]
		}
		for at, ops := range all {
			for i := range ops {
				if at.target == name && ops[i].op != OpRead {
					ops[i].place = places[ops[i].request]
				}
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(all), func(a, b where) int { return int(a.id - b.id) }) {
		ops := all[at]
		if len(ops) == 1 && ops[0].value == 0 {
			continue
		}
		j.judged.Registers++
		j.judged.Operations += len(ops) - 1
		switch check(ops) {
		case porcupine.Illegal:
			j.find("register", fmt.Sprint(at.target, " ", at.id), "no order of its %d operations explains what was answered and what it holds: %s", len(ops), tellOperations(ops))
		case porcupine.Unknown:
			j.find("undecided", fmt.Sprint(at.target, " ", at.id), "not in the order that the target gives, and no other was found or excluded in %v: %s", patience, tellOperations(ops))
		}
	}
}

func tellOperations(ops []operation) string {
	slices.SortFunc(ops, func(a, b operation) int { return int(min(max(a.at-b.at, -1), 1)) })
	var text strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&text, "\n\t%s %s %d", o.request, o.op, o.n)
		if o.known {
			fmt.Fprintf(&text, " gave %d", o.value)
		}
		fmt.Fprintf(&text, " from %.6f", float64(o.at)/1e9)
		if o.done < never {
			fmt.Fprintf(&text, " to %.6f", float64(o.done)/1e9)
		}
		fmt.Fprintf(&text, ", change %d", o.place)
	}
	return text.String()
}
