package dialect

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/dberr"
)

// Class is the meaning of a database's error for the failed write.
type Class uint8

const (
	// Unknown means that there was no answer. The write may have been applied.
	Unknown Class = iota
	// Unreachable means that the write never left. It was not applied; later it may succeed.
	Unreachable
	// Retryable means that the database rejected the write for now. It was not applied; later
	// it may succeed.
	Retryable
	// Refused means that the database rejected the write for good; no retry can help.
	Refused
	// Duplicate is Refused because of a unique key. After an attempt of the same write with an
	// unknown outcome, it is evidence that the attempt was applied.
	Duplicate
	// Contention is Retryable because of other transactions: a deadlock, a lock timeout, a
	// serialization failure. The write itself may be fine.
	Contention
	// Unclassified means that the database answered with an unlisted error. bed retries a
	// logged write as for Retryable; the error alone does not tell whether the write was
	// applied.
	Unclassified
)

// Answered reports whether c is the database's own answer.
func (c Class) Answered() bool { return c >= Retryable }

// Later reports whether the database answered, did not apply the write, and may do so later.
func (c Class) Later() bool { return c == Retryable || c == Contention || c == Unclassified }

func (c Class) String() string {
	names := [...]string{"unknown", "unreachable", "retryable", "refused", "duplicate key", "contention", "unclassified"}
	if int(c) >= len(names) {
		return names[0]
	}
	return names[c]
}

// Class returns the class of err, an error of a statement on a live connection.
func (d *Dialect) Class(err error) Class {
	if class, ok := CertainClass(err); ok {
		return class
	}
	if d.Classify != nil {
		return d.Classify(err)
	}
	return classifyBySQLState(err)
}

// Mistaken reports whether err is a refusal that the service itself has caused: a syntax
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

// CertainClass returns the class of an error that was marked with one, or has a method
// Certainly.
func CertainClass(err error) (class Class, ok bool) {
	var sure interface{ Certainly() Class }
	if !errors.As(err, &sure) {
		return Unknown, false
	}
	return sure.Certainly(), true
}

// DialClass returns the class of an error from before the statement was sent: from a dial, a
// prepare, a BEGIN. In any case the write was not applied.
func (d *Dialect) DialClass(err error) Class {
	if c := d.Class(err); c != Unknown {
		return c
	}
	return Unreachable
}

// classifyBySQLState classifies by the SQLSTATE classes of the SQL standard, for databases
// without a table of their own.
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

// known holds the dialects for ClassOf, by their names.
var known sync.Map

// Know registers d for ClassOf. It is safe for concurrent use.
func (d *Dialect) Know() { known.Store(d.Name, d) }

// MistakeOf reports whether err, or an error that it wraps, is Mistaken for a known dialect. One
// mistake among several errors is enough.
func MistakeOf(err error) (mistake bool) {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) && slices.ContainsFunc(several.Unwrap(), MistakeOf) {
		return true
	}
	known.Range(func(_, d any) bool {
		mistake = d.(*Dialect).Mistaken(err)
		return !mistake
	})
	return mistake
}

// ClassOf returns the class of a driver's error by the known dialects.
func ClassOf(err error) (class Class) {
	known.Range(func(_, d any) bool {
		class = d.(*Dialect).Class(err)
		return class == Unknown
	})
	return class
}
