package delivery

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/dberr"
)

// Class says what an error of a database means for the write that met it.
type Class uint8

const (
	// Unknown: no answer came back. The write may have been applied.
	Unknown Class = iota
	// Unreachable: the write never left. It was not applied; later may do.
	Unreachable
	// Retryable: the database answered, did not apply it, and may do so later.
	Retryable
	// Refused: the database understood it and said no; no retry can help.
	Refused
	// Duplicate is Refused because of a unique key. After an attempt of
	// unknown outcome of the same write it is the trace of that attempt.
	Duplicate
	// Contention is Retryable because other transactions were in the way: a deadlock, a
	// lock timeout, a serialization failure. It says nothing of the write itself.
	Contention
	// Unclassified: the database answered with an error that no table lists. A logged
	// write is tried again like one that is Retryable; whoever has only the error does not
	// know whether anything was applied.
	Unclassified
)

// Answered reports whether an error of this class is the database's own answer.
func (c Class) Answered() bool { return c >= Retryable }

// Later reports whether the database answered, did not apply the write, and may do so
// later.
func (c Class) Later() bool { return c == Retryable || c == Contention || c == Unclassified }

func (c Class) String() string {
	names := [...]string{"unknown", "unreachable", "retryable", "refused", "duplicate key", "contention", "unclassified"}
	if int(c) >= len(names) {
		return names[0]
	}
	return names[c]
}

// Class reads err, which a statement handed to a live connection returned.
func (d *Dialect) Class(err error) Class {
	if class, ok := CertainClass(err); ok {
		return class
	}
	if d.Classify != nil {
		return d.Classify(err)
	}
	return classifyBySQLState(err)
}

// Mistaken reports whether err is a refusal that the service must answer for: a syntax
// error, a missing table or column, a missing right. Other values would not help.
func (d *Dialect) Mistaken(err error) bool {
	switch {
	case d.Class(err) != Refused:
		return false
	case d.Mistake != nil:
		return d.Mistake(err)
	}
	state := dberr.Of(err).State
	return len(state) == 5 && state[:2] == "42"
}

// CertainClass gives the class with which err was marked, or that it knows of
// itself by a method Certainly.
func CertainClass(err error) (class Class, ok bool) {
	var sure interface{ Certainly() Class }
	if !errors.As(err, &sure) {
		return Unknown, false
	}
	return sure.Certainly(), true
}

// DialClass reads an error of something that had to happen before the
// statement could be sent: a dial, a prepare, a BEGIN. Whatever it is, the
// write was not applied.
func (d *Dialect) DialClass(err error) Class {
	if c := d.Class(err); c != Unknown {
		return c
	}
	return Unreachable
}

// classifyBySQLState is the reading for a database that brings no table of
// its own: the classes of the SQL standard's SQLSTATE.
func classifyBySQLState(err error) Class {
	if errors.Is(err, driver.ErrBadConn) {
		return Unreachable
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Unknown
	}
	state := dberr.Of(err).State
	if len(state) != 5 {
		return Unknown
	}
	if state == "23505" {
		return Duplicate
	}
	switch state[:2] {
	case "21", "22", "23", "42", "44", "0A":
		return Refused
	case "08":
		return Unknown
	case "40":
		return Contention
	case "53", "55", "57", "58":
		return Retryable
	default:
		return Unclassified
	}
}
