package txlog

import (
	"database/sql/driver"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
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

// appendValue appends v with its type. The kinds that every driver gets come
// first; nothing here uses reflection except the lookup of registered types.
func appendValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case string:
		if utf8.ValidString(v) {
			return appendQuoted(b, v), nil
		}
		return appendTagged(b, "string", v, appendText), nil
	case []byte:
		return appendTagged(b, "[]byte", v, appendBytes), nil
	case time.Time:
		return appendTagged(b, "time", v, appendTime), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return appendTagged(b, "float64", v, appendFloat64), nil
		}
		return appendFloat64(b, v), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case uint64:
		return appendTagged(b, "uint64", v, appendUint), nil
	case int:
		return appendTagged(b, "int", v, appendInt), nil
	case int8:
		return appendTagged(b, "int8", v, appendInt), nil
	case int16:
		return appendTagged(b, "int16", v, appendInt), nil
	case int32:
		return appendTagged(b, "int32", v, appendInt), nil
	case uint:
		return appendTagged(b, "uint", v, appendUint), nil
	case uint8:
		return appendTagged(b, "uint8", v, appendUint), nil
	case uint16:
		return appendTagged(b, "uint16", v, appendUint), nil
	case uint32:
		return appendTagged(b, "uint32", v, appendUint), nil
	case float32:
		return appendTagged(b, "float32", v, appendFloat32), nil
	case time.Duration:
		return appendTagged(b, "duration", v, appendDuration), nil
	}
	return appendRareValue(b, v)
}

func appendRareValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case []string:
		return appendSlice(b, "[]string", v, appendText), nil
	case []int64:
		return appendSlice(b, "[]int64", v, appendInt), nil
	case []int32:
		return appendSlice(b, "[]int32", v, appendInt), nil
	case []int16:
		return appendSlice(b, "[]int16", v, appendInt), nil
	case []int8:
		return appendSlice(b, "[]int8", v, appendInt), nil
	case []int:
		return appendSlice(b, "[]int", v, appendInt), nil
	case []uint64:
		return appendSlice(b, "[]uint64", v, appendUint), nil
	case []uint32:
		return appendSlice(b, "[]uint32", v, appendUint), nil
	case []uint16:
		return appendSlice(b, "[]uint16", v, appendUint), nil
	case []uint:
		return appendSlice(b, "[]uint", v, appendUint), nil
	case []float64:
		return appendSlice(b, "[]float64", v, appendFloat64), nil
	case []float32:
		return appendSlice(b, "[]float32", v, appendFloat32), nil
	case []bool:
		return appendSlice(b, "[]bool", v, strconv.AppendBool), nil
	case [][]byte:
		return appendSlice(b, "[][]byte", v, appendBytes), nil
	case []time.Time:
		return appendSlice(b, "[]time", v, appendTime), nil
	case []time.Duration:
		return appendSlice(b, "[]duration", v, appendDuration), nil
	}
	return appendRegistered(b, v)
}

func appendTag(b []byte, tag string) []byte {
	b = append(b, '{', '"')
	b = append(b, tag...)
	return append(b, '"', ':')
}

func appendTagged[T any](b []byte, tag string, v T, appendT func([]byte, T) []byte) []byte {
	return append(appendT(appendTag(b, tag), v), '}')
}

func appendSlice[T any](b []byte, tag string, s []T, appendT func([]byte, T) []byte) []byte {
	b = appendTag(b, tag)
	if s == nil {
		return append(b, "null}"...)
	}
	b = append(b, '[')
	for i, v := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendT(b, v)
	}
	return append(b, ']', '}')
}

func appendInt[T int | int8 | int16 | int32 | int64](b []byte, v T) []byte {
	return strconv.AppendInt(b, int64(v), 10)
}

func appendUint[T uint | uint8 | uint16 | uint32 | uint64](b []byte, v T) []byte {
	return strconv.AppendUint(b, uint64(v), 10)
}

// The NaNs that Go itself makes are written "NaN", others with their bits.
var (
	nan64 = math.Float64bits(math.NaN())
	nan32 = math.Float32bits(float32(math.NaN()))
)

func appendFloat64(b []byte, v float64) []byte {
	if math.IsNaN(v) {
		return appendNaN(b, math.Float64bits(v), nan64)
	}
	return appendFloat(b, v, 64)
}

func appendFloat32(b []byte, v float32) []byte {
	if v != v {
		return appendNaN(b, uint64(math.Float32bits(v)), uint64(nan32))
	}
	return appendFloat(b, float64(v), 32)
}

func appendNaN(b []byte, bits, usual uint64) []byte {
	b = append(b, `"NaN`...)
	if bits != usual {
		b = strconv.AppendUint(append(b, ':'), bits, 16)
	}
	return append(b, '"')
}

// appendFloat always leaves a point or an exponent, which tells a float64 from
// an int64.
func appendFloat(b []byte, v float64, bits int) []byte {
	if math.IsInf(v, 0) {
		b = append(b, '"')
		b = strconv.AppendFloat(b, v, 'g', -1, bits)
		return append(b, '"')
	}
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(b, v, 'e', -1, bits)
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, bits)
	if slices.Contains(b[from:], '.') {
		return b
	}
	return append(b, '.', '0')
}

func appendDuration(b []byte, v time.Duration) []byte {
	return append(append(append(b, '"'), v.String()...), '"')
}

// appendText appends a string of any bytes.
func appendText(b []byte, s string) []byte {
	if utf8.ValidString(s) {
		return appendQuoted(b, s)
	}
	b = append(b, `{"base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, []byte(s))
	return append(b, '"', '}')
}

// appendBytes appends bytes: as text when they are printable (a JSON document,
// a decimal number), else in base64; nil as null.
func appendBytes(b []byte, s []byte) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	if printable(s) {
		return appendQuoted(b, s)
	}
	b = append(b, `{"base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, s)
	return append(b, '"', '}')
}

func printable(s []byte) bool {
	for _, c := range s {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
	}
	return utf8.Valid(s)
}

// appendQuoted appends valid UTF-8 as a JSON string.
func appendQuoted[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexChars[c>>4], hexChars[c&15])
		}
	}
	return append(append(b, s[start:]...), '"')
}
