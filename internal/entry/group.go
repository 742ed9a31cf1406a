package entry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Undo makes a unit the compensation of a group, a soft transaction. The compensation has
// the group's TransactionID as its own ID. Its statements undo the group's other units, the
// forward units. It waits with an empty Receipt until txlog.Storage.Compensate starts it; then the
// parts are undone, the last one first.
type Undo struct {
	// Parts are all parts of the group, in the order of their recording; at least one.
	Parts []Part `json:"parts"`
	// Cause is the reason for the compensation; empty before it starts.
	Cause string `json:"cause,omitempty"`
}

// Part is the portion of a forward unit that its undoing needs after the unit has left the
// log.
type Part struct {
	// Unit is the forward unit's id, Receipt the id of its receipt.
	Unit    string `json:"unit"`
	Receipt string `json:"receipt"`
	// The other fields are as in [Unit].
	DataSource string `json:"data_source"`
	Settings   string `json:"settings,omitempty"`
	Session    string `json:"session,omitempty"`
	Account    string `json:"account,omitempty"`
	Place      string `json:"receipts,omitempty"`
	// Applied means that the forward unit is known to be applied. Start sets it.
	Applied bool `json:"applied,omitempty"`
}

const (
	// maxUndo is the maximum size of the parts in bytes, maxCause of the cause: the column
	// settings holds 64 KiB, JSON may turn one byte into six, and Start marks parts.
	maxUndo  = 40 << 10
	maxCause = 2 << 10
)

// InGroup reports whether ErrGroup protects the unit from being discarded, parked or
// amended.
func (u *Unit) InGroup() bool { return u.Group() || u.Unstarted() }

// Unstarted reports whether u is a compensation that has not started.
func (u *Unit) Unstarted() bool { return u.Undo != nil && !u.Compensating() }

// Compensating reports whether u is a compensation that has started.
func (u *Unit) Compensating() bool { return u.Undo != nil && u.Receipt != "" }

// HalfCompensated reports whether u is a started compensation that waits for an operator: some of
// its parts may be undone, and others not.
func (u *Unit) HalfCompensated() bool { return u.Compensating() && u.Parked }

// Overdue reports whether u has reached the age CompensateAfter, so that its group must be
// compensated.
func (u *Unit) Overdue() bool {
	return u.CompensateAfter > 0 && u.ReadAt.Sub(u.CreatedAt) >= u.CompensateAfter
}

// Order returns the parts' indexes in the order of their undoing: from the last one to the
// first, with the parts of one data source together.
func (w *Undo) Order() []int {
	var order []int
	for last := len(w.Parts) - 1; last >= 0; last-- {
		if slices.ContainsFunc(order, func(i int) bool { return w.Parts[i].DataSource == w.Parts[last].DataSource }) {
			continue
		}
		for i := last; i >= 0; i-- {
			if w.Parts[i].DataSource == w.Parts[last].DataSource {
				order = append(order, i)
			}
		}
	}
	return order
}

// Part returns the unit that undoes part n (from 0) of the compensation k. It may have no
// statements. They run in the part's session if the forward unit's receipt is there.
func (k *Unit) Part(n int) *Unit {
	p := k.Undo.Parts[n]
	u := &Unit{
		ID: p.Unit, TransactionID: k.TransactionID, TraceParent: k.TraceParent, Receipt: p.Receipt, Undo: k.Undo, Lease: k.Lease, CreatedAt: k.CreatedAt,
		DataSource: p.DataSource, Settings: p.Settings, Session: p.Session, Account: p.Account, Place: p.Place,
	}
	for _, s := range k.Statements {
		if s.Part == n+1 {
			u.Statements = append(u.Statements, s)
		}
	}
	return u
}

// Applied reports whether the forward unit is known to be applied.
func (w *Undo) Applied(unit string) bool {
	return slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Unit == unit && p.Applied })
}

// Units returns the ids of the forward units.
func (w *Undo) Units() []string {
	ids := make([]string, len(w.Parts))
	for i := range w.Parts {
		ids[i] = w.Parts[i].Unit
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Locate records the place of a forward unit's receipt, and the unit's session. It returns
// false if the unit is not one of the parts.
func (w *Undo) Locate(unit, place, session string) (found bool) {
	for i := range w.Parts {
		if p := &w.Parts[i]; p.Unit == unit {
			p.Place, p.Session, found = place, session, true
		}
	}
	return found
}

// Start starts the compensation k. left reports whether a forward unit is still in the log. One that
// had a place and is gone was delivered.
func (k *Unit) Start(cause string, left func(unit string) bool) {
	for i := range k.Undo.Parts {
		p := &k.Undo.Parts[i]
		p.Applied = p.Place != "" && !left(p.Unit)
	}
	k.Undo.Cause = CutText(cause, maxCause)
	k.Receipt, k.LastError = k.ID, k.Undo.Cause
	k.DataSource = k.Undo.Parts[k.Undo.Order()[0]].DataSource
}

// AppendTo appends its form in the column settings.
func (w *Undo) AppendTo(b []byte) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(w) // of texts alone, into memory
	return append(b, bytes.TrimRight(text.Bytes(), "\n")...)
}

// validateGroup rejects a unit that would make its group impossible to complete or
// compensate.
func (u *Unit) validateGroup() error {
	u.CompensateAfter = time.Duration(Millis(u.CompensateAfter)) * time.Millisecond
	if u.Undo == nil {
		for i := range u.Statements {
			if u.Statements[i].Part != u.Statements[0].Part || u.Statements[i].Part < 0 {
				return fmt.Errorf("txlog: the statements of unit %s are of several parts of its group", u.ID)
			}
		}
		if !u.Group() && u.CompensateAfter != 0 {
			return fmt.Errorf("txlog: unit %s has a time to be compensated after, but no group", u.ID)
		}
		if u.Group() && (u.Receipt == "" || u.Fingerprint != "" || u.NotReplayable != "" || u.TransactionID == u.ID) {
			return fmt.Errorf("txlog: unit %s of a compensable group must have a receipt, no idempotency key, may not be one that cannot be run again, and cannot be the group itself", u.ID)
		}
		return nil
	}
	bad := func(what string) error { return fmt.Errorf("txlog: the compensation %s of a group %s", u.ID, what) }
	switch {
	case u.TransactionID != u.ID:
		return bad("must have the group's id as its own")
	case u.Receipt != "" && u.Receipt != u.ID || u.Fingerprint != "" || u.NotReplayable != "" || u.Settings+u.Session+u.Account+u.Place != "":
		return bad("has no receipt, key, session or place of its own: its parts have")
	case len(u.Undo.Parts) == 0 || !slices.ContainsFunc(u.Undo.Parts, func(p Part) bool { return p.DataSource == u.DataSource }):
		return bad("must have parts, and the data source of one of them")
	case len(u.Undo.AppendTo(nil)) > maxUndo:
		return bad(fmt.Sprintf("has parts that take more than %d bytes", maxUndo))
	}
	for i, p := range u.Undo.Parts {
		if !IsHeadID(p.Unit) || !StorableToken(p.Receipt, MaxReceipt) || p.DataSource == "" || strings.TrimSpace(p.DataSource) != p.DataSource || utf8.RuneCountInString(p.DataSource) > maxDataSource ||
			!StorableText(p.DataSource+p.Settings+p.Session+p.Account+p.Place) {
			return bad(fmt.Sprintf("does not say well of its part %d which unit it is, its receipt, its data source and its settings", i+1))
		}
	}
	for i := range u.Statements {
		if n := u.Statements[i].Part; n < 1 || n > len(u.Undo.Parts) {
			return bad(fmt.Sprintf("has a statement %d of no part", i+1))
		}
	}
	return nil
}
