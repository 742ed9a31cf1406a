package besteffort

import (
	"fmt"
	"slices"
)

// state is where a unit stands between its call and its end. docs/architecture.md draws it.
type state uint8

const (
	// fresh: nothing is written and, but for a late entry, nothing is sent.
	fresh state = iota
	// logging: its entry is being written. It may or may not exist.
	logging
	// logged: its entry exists, and this call owns it.
	logged
	// unlogged: it runs without an entry, and that is all. No one counts it.
	unlogged
	// held: delivered or refused. Its entry and its lease wait for its decorator's decision.
	held
	// handedOver: the job or an operator ends it.
	handedOver
	// done: delivered or refused. Nothing is left to do but to remove its entry.
	done
)

// doubt is about the attempts that got no answer.
type doubt uint8

const (
	// noDoubt: every attempt so far was answered.
	noDoubt doubt = iota
	// inDoubt: an attempt may have been applied, or may be yet.
	inDoubt
	// voided: this call decided the doubt. The receipt says that the unit will never be applied.
	voided
)

// step is a transition between states.
type step struct {
	to   state
	from []state
}

var (
	// write begins to write the entry.
	write = step{logging, []state{fresh}}
	// accept notes that the log holds the entry.
	accept = step{logged, []state{fresh, logging}}
	// goWithout runs the unit although the log failed.
	goWithout = step{unlogged, []state{logging}}
	// hold keeps the entry of a settled unit for a decorator.
	hold = step{held, []state{logged}}
	// resume gives a held unit back to the protocol.
	resume = step{logged, []state{held}}
	// leave gives the unit up: its entry, if it exists, is for others.
	leave = step{handedOver, []state{logging, logged, held}}
	// finish settles the unit here.
	finish = step{done, []state{fresh, logging, logged, held}}
)

// course is a unit's state and doubt.
type course struct {
	state state
	doubt doubt
}

// Strict makes a step that the drawing lacks panic. Tests set it; elsewhere the unit goes on.
var Strict bool

// take makes a step.
func (c *course) take(s step) {
	if Strict && !slices.Contains(s.from, c.state) {
		panic(fmt.Sprintf("bed: a unit cannot go from state %d to %d", c.state, s.to))
	}
	c.state = s.to
}

// doubtIf notes an attempt, or an entry, that may still take effect. Only an answer of the receipt
// ends the doubt.
func (c *course) doubtIf(open bool) {
	if open {
		c.doubt = inDoubt
	}
}

// decided ends the doubt by the receipt. void means that the receipt tells of this unit alone.
func (c *course) decided(void bool) {
	if c.doubt = noDoubt; void {
		c.doubt = voided
	}
}
