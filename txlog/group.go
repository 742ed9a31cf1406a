package txlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	// ErrTurned is returned by Complete for a group that has turned back, or was undone
	// already.
	ErrTurned = errors.New("txlog: the group has turned back: what was applied of it is undone")
	// ErrGroup is returned when a unit of a group that can turn back would be discarded,
	// parked or amended by itself: the group would be neither done nor undone.
	ErrGroup = errors.New("txlog: the entry belongs to a group that can turn back: turn it back as a whole (bed-job compensate), or retry the entry")
)

// Undo makes a unit the way back of a group, a soft transaction that can turn back.
// Such a unit has the group's TransactionID as its own ID and the statements that undo
// what the group's other units, its forward units, do. It is dormant, and Receipt empty,
// until the group turns ([Storage].Turn); then the parts are undone, the last one first.
type Undo struct {
	// Parts are all of the group, in the order of their recording; at least one.
	Parts []Part `json:"parts"`
	// Cause says why the group turned; empty until then.
	Cause string `json:"cause,omitempty"`
}

// Part is one forward unit of a group, as much of it as is needed to undo it when it has
// left the log.
type Part struct {
	// Unit is the forward unit's id, Receipt that of the receipt it leaves.
	Unit    string `json:"unit"`
	Receipt string `json:"receipt"`
	// The rest is as in [Unit].
	DataSource string `json:"data_source"`
	Settings   string `json:"settings,omitempty"`
	Session    string `json:"session,omitempty"`
	Account    string `json:"account,omitempty"`
	Place      string `json:"receipts,omitempty"`
}

const (
	// maxUndo is how many bytes the parts may take, maxCause the cause: the column
	// settings holds 64 KiB, and JSON may make six bytes of one.
	maxUndo  = 48 << 10
	maxCause = 2 << 10
)

// Group reports whether u is a forward unit of a group that can turn back: the unit
// u.TransactionID is its way back.
func (u *Unit) Group() bool {
	return u.Undo == nil && len(u.Statements) > 0 && u.Statements[0].Part > 0
}

// Decides is the id of the entry whose state is the unit's: that of its group's way back, or its
// own. A part that is delivered can still be undone.
func (u *Unit) Decides() string {
	if u.Group() {
		return u.TransactionID
	}
	return u.ID
}

// inGroup reports whether the unit cannot be discarded, parked or amended by itself.
func (u *Unit) inGroup() bool { return u.Group() || u.dormant() }

// dormant reports whether u is the way back of a group that has not turned.
func (u *Unit) dormant() bool { return u.Undo != nil && !u.Turned() }

func parked(u *Unit) bool { return u.Parked }

// Turned reports whether u is the way back of a group that has turned.
func (u *Unit) Turned() bool { return u.Undo != nil && u.Receipt != "" }

// HalfUndone reports whether u is the way back of a group that has turned and waits for
// an operator: some of its parts may be undone, and others not.
func (u *Unit) HalfUndone() bool { return u.Turned() && u.Parked }

// Overdue reports whether u, of a group, is as old as its TurnAfter says: the group has to
// turn back.
func (u *Unit) Overdue() bool {
	return u.TurnAfter > 0 && u.ReadAt.Sub(u.CreatedAt) >= u.TurnAfter
}

// Order gives the parts' indexes in the order in which they are undone: from the last one
// to the first, those of one data source together.
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

// Part gives the unit that undoes part n (from 0) of the way back k: its statements, which
// may be none, to be run in the part's session if the receipt of its forward unit is there.
func (k *Unit) Part(n int) *Unit {
	p := k.Undo.Parts[n]
	u := &Unit{
		ID: p.Unit, TransactionID: k.TransactionID, TraceParent: k.TraceParent, Receipt: p.Receipt, Undo: k.Undo, Lease: k.Lease,
		DataSource: p.DataSource, Settings: p.Settings, Session: p.Session, Account: p.Account, Place: p.Place,
	}
	for _, s := range k.Statements {
		if s.Part == n+1 {
			u.Statements = append(u.Statements, s)
		}
	}
	return u
}

// units are the ids of the forward units.
func (w *Undo) units() []string {
	ids := make([]string, len(w.Parts))
	for i := range w.Parts {
		ids[i] = w.Parts[i].Unit
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// locate notes where the receipt of a forward unit is, and what its session is; false if
// it is none of the parts.
func (w *Undo) locate(unit, place, session string) (found bool) {
	for i := range w.Parts {
		if p := &w.Parts[i]; p.Unit == unit {
			p.Place, p.Session, found = place, session, true
		}
	}
	return found
}

// clone copies it with its parts.
func (w *Undo) clone() *Undo {
	if w == nil {
		return nil
	}
	return &Undo{Parts: slices.Clone(w.Parts), Cause: w.Cause}
}

// turn turns the dormant way back k.
func (k *Unit) turn(cause string) {
	k.Undo.Cause = cutText(cause, maxCause)
	k.Receipt, k.LastError = k.ID, k.Undo.Cause
	k.DataSource = k.Undo.Parts[k.Undo.Order()[0]].DataSource
}

// appendTo writes it as it stands in the column settings.
func (w *Undo) appendTo(b []byte) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(w) // of texts alone, into memory
	return append(b, bytes.TrimRight(text.Bytes(), "\n")...)
}

// validateGroup refuses a unit of a group that could not be done or undone as a whole.
func (u *Unit) validateGroup() error {
	u.TurnAfter = time.Duration(millis(u.TurnAfter)) * time.Millisecond
	if u.Undo == nil {
		for i := range u.Statements {
			if u.Statements[i].Part != u.Statements[0].Part || u.Statements[i].Part < 0 {
				return fmt.Errorf("txlog: the statements of unit %s are of several parts of its group", u.ID)
			}
		}
		if !u.Group() && u.TurnAfter != 0 {
			return fmt.Errorf("txlog: unit %s has a time to turn back after, but no group", u.ID)
		}
		if u.Group() && (u.Receipt == "" || u.Fingerprint != "" || u.NotReplayable != "" || u.TransactionID == u.ID) {
			return fmt.Errorf("txlog: unit %s of a group that can turn back must have a receipt, no idempotency key, may not be one that cannot be run again, and cannot be the group itself", u.ID)
		}
		return nil
	}
	bad := func(what string) error { return fmt.Errorf("txlog: the way back %s of a group %s", u.ID, what) }
	switch {
	case u.TransactionID != u.ID:
		return bad("must have the group's id as its own")
	case u.Receipt != "" && u.Receipt != u.ID || u.Fingerprint != "" || u.NotReplayable != "" || u.Settings+u.Session+u.Account+u.Place != "":
		return bad("has no receipt, key, session or place of its own: its parts have")
	case len(u.Undo.Parts) == 0 || !slices.ContainsFunc(u.Undo.Parts, func(p Part) bool { return p.DataSource == u.DataSource }):
		return bad("must have parts, and the data source of one of them")
	case len(u.Undo.appendTo(nil)) > maxUndo:
		return bad(fmt.Sprintf("has parts that take more than %d bytes", maxUndo))
	}
	for i, p := range u.Undo.Parts {
		if !isHeadID(p.Unit) || !storableToken(p.Receipt, maxReceipt) || p.DataSource == "" || strings.TrimSpace(p.DataSource) != p.DataSource || utf8.RuneCountInString(p.DataSource) > maxDataSource ||
			!storableText(p.DataSource+p.Settings+p.Session+p.Account+p.Place) {
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
