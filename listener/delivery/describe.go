package delivery

import (
	"errors"
	"fmt"
	"reflect"
)

// Describe says what err is without any value of the application's: servers
// quote parameters in their messages ("Duplicate entry 'x' for key"), so of
// what a server said only its codes are told, whatever its class: also one
// that leaves the outcome unknown may quote them. It is what a log line may
// carry; the whole text stays in the transaction log's last_error.
func (d *Dialect) Describe(err error) string {
	if err == nil {
		return ""
	}
	class := d.Class(err)
	switch codes := serverCodes(err); {
	case codes != "":
		return fmt.Sprintf("%s: %s", class, codes)
	case !class.Answered():
		return fmt.Sprintf("%s: %v", class, err)
	default:
		return fmt.Sprintf("%s: %T", class, err)
	}
}

// DescribeLog is Describe for what the transaction log's own database said of a
// write to the log, which carries the application's values or an error's text.
func DescribeLog(err error) string {
	if codes := serverCodes(err); codes != "" {
		return "the log's database: " + codes
	}
	return err.Error()
}

// serverCodes gives the codes that a server's error carries; empty for an error
// that carries none.
func serverCodes(err error) string {
	number, state := serverCode(err), SQLState(err)
	switch {
	case number != "" && state != "":
		return fmt.Sprintf("server error %s (SQLSTATE %s)", number, state)
	case number != "":
		return "server error " + number
	case state != "":
		return "SQLSTATE " + state
	default:
		return ""
	}
}

// serverCode finds a numeric error code: the method Code (SQLite) or the field
// Number (go-sql-driver).
func serverCode(err error) (code string) {
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return fmt.Sprint(c.Code())
	}
	eachStruct(err, func(v reflect.Value) bool {
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
			code = fmt.Sprint(f.Uint())
		}
		return code == ""
	})
	return code
}

// eachStruct calls f for the errors in err's tree that are structs, or point
// to one, until f says false.
func eachStruct(err error, f func(reflect.Value) bool) bool {
	if err == nil {
		return true
	}
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct && !f(v) {
		return false
	}
	switch e := err.(type) { //nolint:errorlint // this is what errors.As does
	case interface{ Unwrap() error }:
		return eachStruct(e.Unwrap(), f)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !eachStruct(err, f) {
				return false
			}
		}
	}
	return true
}

// contended reports whether err is a lock timeout, a deadlock or a
// serialization failure: what an attempt meets on a receipt that another one
// is writing. A disk that is full or a server that is read-only is not.
func contended(err error) bool {
	switch SQLState(err) {
	case "40001", "40P01", "55P03", "57014":
		return true
	}
	var sqlite interface{ Code() int }
	if errors.As(err, &sqlite) {
		primary := sqlite.Code() & 0xff
		return primary == 5 || primary == 6 // SQLITE_BUSY, SQLITE_LOCKED
	}
	switch serverCode(err) {
	case "1020", "1205", "1213", "1969", "3024":
		return true
	}
	return false
}
