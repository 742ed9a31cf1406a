package delivery

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/txlog"
)

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

// Store turns args into what the log keeps: see Storable. args itself is
// left as it is; it is returned when nothing had to change.
func (d *Dialect) Store(args []driver.NamedValue) ([]driver.NamedValue, error) {
	if d.Storable == nil {
		return args, nil
	}
	var out []driver.NamedValue
	for i := range args {
		v, err := d.Storable(args[i].Value)
		if err != nil {
			return nil, &txlog.ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: fmt.Sprintf("%T", args[i].Value), Err: err}
		}
		if out == nil && !same(v, args[i].Value) {
			out = append(make([]driver.NamedValue, 0, len(args)), args[:i]...)
		}
		if out != nil {
			nv := args[i]
			nv.Value = v
			out = append(out, nv)
		}
	}
	if out != nil {
		return out, nil
	}
	return args, nil
}

// same reports whether Storable handed v back untouched. The common kinds are
// compared without reflection; anything else counts as changed.
func same(a, b any) bool {
	switch x := a.(type) {
	case nil:
		return b == nil
	case int64:
		y, ok := b.(int64)
		return ok && x == y
	case string:
		y, ok := b.(string)
		return ok && x == y
	case []byte:
		_, ok := b.([]byte)
		return ok
	case bool:
		y, ok := b.(bool)
		return ok && x == y
	default:
		return false
	}
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
