package delivery

import (
	"errors"
	"fmt"
	"reflect"
)

// Describe says what err is without any value of the application's: servers
// quote parameters in their messages ("Duplicate entry 'x' for key"), so of
// an answer only its codes are told. It is what a log line may carry; the
// whole text stays in the transaction log's last_error.
func (d *Dialect) Describe(err error) string {
	if err == nil {
		return ""
	}
	class := d.Class(err)
	if !class.Answered() {
		return fmt.Sprintf("%s: %v", class, err)
	}
	number, state := serverCode(err), SQLState(err)
	switch {
	case number != "" && state != "":
		return fmt.Sprintf("%s: server error %s (SQLSTATE %s)", class, number, state)
	case number != "":
		return fmt.Sprintf("%s: server error %s", class, number)
	case state != "":
		return fmt.Sprintf("%s: SQLSTATE %s", class, state)
	default:
		return fmt.Sprintf("%s: %T", class, err)
	}
}

// serverCode finds a numeric error code: the method Code (SQLite) or the field
// Number (go-sql-driver).
func serverCode(err error) string {
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return fmt.Sprint(c.Code())
	}
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
			return fmt.Sprint(f.Uint())
		}
	}
	return ""
}
