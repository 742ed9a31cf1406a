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
	// An answer that no table lists is Retryable.
	Retryable
	// Refused: the database understood it and said no; no retry can help.
	Refused
	// Duplicate is Refused because of a unique key. After an attempt of
	// unknown outcome of the same write it is the trace of that attempt.
	Duplicate
)

// Answered reports whether an error of this class is the database's own answer.
func (c Class) Answered() bool { return c >= Retryable }

func (c Class) String() string {
	names := [...]string{"unknown", "unreachable", "retryable", "refused", "duplicate key"}
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
	default:
		return Retryable
	}
}
