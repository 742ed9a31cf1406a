package txlog

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
)

// serverCode finds the code that a database gave with an error, without
// importing its driver: a SQLSTATE, or a number (MySQL's, SQLite's).
func serverCode(err error) (state string, number int64) {
	var byState interface{ SQLState() string }
	if errors.As(err, &byState) {
		return byState.SQLState(), 0
	}
	var byCode interface {
		error
		Code() int
	}
	if errors.As(err, &byCode) {
		return "", int64(byCode.Code())
	}
	return codeByFields(err)
}

// codeByFields looks for the fields of go-sql-driver's MySQLError, which has no
// methods to ask, in err and what it wraps.
func codeByFields(err error) (state string, number int64) {
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() == reflect.Struct {
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() && v.FieldByName("Message").IsValid() {
			return "", int64(f.Uint())
		}
		if f := v.FieldByName("SQLState"); f.IsValid() && f.Kind() == reflect.String {
			return f.String(), 0
		}
	}
	switch wrapper := err.(type) { //nolint:errorlint // it walks the chain by itself
	case interface{ Unwrap() error }:
		if inner := wrapper.Unwrap(); inner != nil {
			return codeByFields(inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range wrapper.Unwrap() {
			if state, number = codeByFields(inner); state != "" || number != 0 {
				return state, number
			}
		}
	}
	return "", 0
}

// answered is the judgement for a database that brought none of its own: only
// an error with a code of the server's is its answer.
func answered(err error) bool {
	state, number := serverCode(err)
	return state != "" || number != 0
}

// definite reports whether err leaves no doubt that nothing was written.
func (b *Backend) definite(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) || errors.Is(err, errNotSent) {
		return true
	}
	// A driver that says ErrBadConn promises that nothing was sent. Not to
	// trust it costs one more INSERT under the same id.
	if errors.Is(err, driver.ErrBadConn) {
		return false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return b.Answered(err)
}

// refused reports whether the database refused what it was given: a part of it
// might pass. It is not so when the database could not be reached, or others
// were in the way.
func (b *Backend) refused(err error) bool {
	return b.Answered(err) && !b.passing(err)
}

// errNotSent marks failures before a statement left, other than those of dialling.
var errNotSent = errors.New("it was not sent")

// passing reports whether a definite error comes from other transactions that
// were in the way (a deadlock, a lock timeout, a serialization failure),
// or from a pooled connection that had died, so that the same statement is worth
// repeating at once.
func (b *Backend) passing(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		return true
	}
	state, number := serverCode(err)
	switch state {
	case "40001", "40P01", "55P03":
		return true
	}
	if b.Flavor == FlavorMySQL {
		return number == 1205 || number == 1213
	}
	// SQLITE_BUSY and SQLITE_LOCKED, with their extended codes.
	return b.Flavor == FlavorSQLite && (number&0xff == 5 || number&0xff == 6)
}
