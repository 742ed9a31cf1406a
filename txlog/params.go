package txlog

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
)

// ParamError says which parameter cannot be kept in the log or read back from
// it. Its text never holds the parameter's value.
type ParamError struct {
	// Name is the parameter's name (sql.Named); empty for one without.
	Name string
	// Ordinal is its place among the statement's parameters, from 1.
	Ordinal int
	// Type is its Go type; empty when that is not known.
	Type string
	// Err says why.
	Err error
}

// Error implements error.
func (e *ParamError) Error() string {
	which := strconv.Itoa(e.Ordinal)
	if e.Name != "" {
		which = "@" + e.Name
	}
	if e.Type != "" {
		which += " (" + e.Type + ")"
	}
	return "txlog: parameter " + which + " " + e.Err.Error()
}

// Unwrap gives the reason.
func (e *ParamError) Unwrap() error { return e.Err }

var errNotStorable = errors.New("cannot be kept in the transaction log: " +
	"pass one of the types that the log keeps, or a driver.Valuer that gives one")

// EncodeParams writes a statement's parameters as one line of typed JSON that
// [DecodeParams] turns back into exactly the same values. It is made to be
// read by people:
//
//	[42, 1.5, true, null, "text", {"uint64":7}, {"[]byte":"text"},
//	 {"time":"2024-05-01T10:00:00+02:00 Europe/Berlin"}, {"name":"id","value":1}]
//
// Bare numbers are int64, those with a point or an exponent float64. Bytes
// that are no printable text are {"base64":"…"}. No parameters give the empty
// string. The result is valid UTF-8 without NUL, whatever the values.
//
// It keeps nil, bool, string, []byte, all widths of int, uint and float,
// time.Time (without its monotonic part), time.Duration, slices of these, and
// the types of [RegisterParamType]. For any other it returns a [*ParamError].
// It is safe for concurrent use.
func EncodeParams(args []driver.NamedValue) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	var stack [512]byte
	b := append(stack[:0], '[')
	for i := range args {
		a := &args[i]
		if i > 0 {
			b = append(b, ',')
		}
		bare := a.Name == "" && a.Ordinal == i+1
		if !bare {
			b = append(b, '{')
			if a.Name != "" {
				b = appendText(append(b, `"name":`...), a.Name)
				b = append(b, ',')
			}
			if a.Ordinal != i+1 {
				b = strconv.AppendInt(append(b, `"ordinal":`...), int64(a.Ordinal), 10)
				b = append(b, ',')
			}
			b = append(b, `"value":`...)
		}
		var err error
		if b, err = appendValue(b, a.Value); err != nil {
			return "", &ParamError{Name: a.Name, Ordinal: ordinalOf(a, i), Type: fmt.Sprintf("%T", a.Value), Err: err}
		}
		if !bare {
			b = append(b, '}')
		}
	}
	return string(append(b, ']')), nil
}

func ordinalOf(a *driver.NamedValue, i int) int {
	if a.Ordinal > 0 {
		return a.Ordinal
	}
	return i + 1
}
