// Package dberr finds a database's codes in an error, without importing the database's
// driver, and detects a timeout by the clock. It is for error paths only.
package dberr

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Code is the database's own code for an error. The zero value belongs to an error that is
// not a database's answer.
type Code struct {
	// State is the SQLSTATE, of five characters; empty for SQLite.
	State string
	// Number is MySQL's error number or SQLite's extended result code; 0 for
	// PostgreSQL.
	Number int64
}

// Of finds the code in err and its wrapped errors: by the methods SQLState (pgx, lib/pq) and
// Code (modernc.org/sqlite), or the fields Number and SQLState (go-sql-driver, which has no
// methods).
func Of(err error) Code {
	var byState interface{ SQLState() string }
	if errors.As(err, &byState) {
		return Code{State: byState.SQLState()}
	}
	var byCode interface {
		error
		Code() int
	}
	if errors.As(err, &byCode) {
		return Code{Number: int64(byCode.Code())}
	}
	return byFields(err)
}

func byFields(err error) (code Code) {
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
			code.Number = int64(f.Uint())
		}
		if f := v.FieldByName("SQLState"); f.IsValid() && f.CanInterface() {
			if state, ok := f.Interface().([5]byte); ok && state[0] != 0 {
				code.State = string(state[:])
			}
		}
		if code.Known() {
			return code
		}
	}
	switch wrapper := err.(type) { //nolint:errorlint // it walks the tree by itself
	case interface{ Unwrap() error }:
		return byFields(wrapper.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range wrapper.Unwrap() {
			if code = byFields(inner); code.Known() {
				return code
			}
		}
	}
	return Code{}
}

// Known reports whether there is a code, so that the error is the database's own answer.
func (c Code) Known() bool { return c != Code{} }

// Contended reports whether the code means contention with other transactions: a lock
// timeout, a deadlock or a serialization failure, but not a full disk or a read-only server.
// The log then repeats its own write, and an insert of a receipt does not count as a try
// (attempt.Outcome.OnReceipt). For the application's writes, the dialects' lists classify
// the code.
func (c Code) Contended() bool {
	return c.Among("40001 40P01 55P03 57014",
		1020, 1205, 1213, 1969, 3024, // MySQL's, which begin at 1000
		8002, 8022, 8028, 9007, // TiDB's
	) || c.Number < 1000 && (c.Number&0xff == 5 || c.Number&0xff == 6) // SQLITE_BUSY and SQLITE_LOCKED, with their extended codes
}

// Among reports whether the code is one of states, separated by blanks, or of numbers.
func (c Code) Among(states string, numbers ...int64) bool {
	return slices.Contains(strings.Fields(states), c.State) || slices.Contains(numbers, c.Number)
}

// TooLarge reports whether err means that a statement or row exceeds the database's limit,
// or the limit of its driver.
func TooLarge(err error) bool {
	code := Of(err)
	return code.Among("54000", 18, 1118, 1153, 1301) || // program_limit_exceeded; SQLITE_TOOBIG; MySQL's
		!code.Known() && strings.Contains(err.Error(), "packet for query is too large") // go-sql-driver's
}

// Denied reports whether the code means a missing right, on a table, a column or a database.
func (c Code) Denied() bool { return c.Among("42501", 1044, 1142, 1143, 1227) } // insufficient_privilege; MySQL's

// NotAdmitted reports whether the code means that the server does not let the account in: a
// wrong or expired password, a locked account, a host that it may not come from. It holds for
// the error of a dial; a trigger may raise the same SQLSTATE.
func (c Code) NotAdmitted() bool {
	return strings.HasPrefix(c.State, "28") || c.Among("", 1045, 1130, 1698, 1820, 1862, 3118, 4151) // MySQL's
}

// Duplicate reports whether the code means an existing value of a unique key, in the log's
// own tables. For the application's writes, the dialects' lists classify the code
// (dialect.Duplicate).
func (c Code) Duplicate() bool {
	return c.Among("23505", 1062, 1555, 2067) // MySQL's, SQLite's of a primary key and of another
}

// String returns the code for a log line; empty without a code.
func (c Code) String() string {
	switch {
	case c.Number != 0 && c.State != "":
		return fmt.Sprintf("server error %d (SQLSTATE %s)", c.Number, c.State)
	case c.Number != 0:
		return fmt.Sprintf("server error %d", c.Number)
	case c.State != "":
		return "SQLSTATE " + c.State
	}
	return ""
}

// DescribeLog describes an error of the transaction log's own database about a write to the
// log. It omits the values, and the text of an error, in the write.
func DescribeLog(err error) string {
	if code := Of(err); code.Known() {
		return "the log's database: " + code.String()
	}
	return err.Error()
}

// ConnectTimeout bounds a connection of one of bed's own pools. database/sql opens them one
// after the other and without a deadline: a server that accepts one and stays silent would
// keep all callers waiting for ever.
const ConnectTimeout = 30 * time.Second

// TimedOut reports whether the timeout of bounded, a context made from ctx, has passed,
// while ctx goes on. It compares with the clock: a driver's dial has a deadline of its own,
// and may give up a moment before the context's timer fires.
func TimedOut(ctx, bounded context.Context) bool {
	return passed(bounded) && !passed(ctx) && ctx.Err() == nil
}

func passed(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && !time.Now().Before(end)
}
