package txlog

import (
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	errNotParams   = errors.New("txlog: the parameters are not what EncodeParams wrote (a JSON array)")
	errNotText     = errors.New("is no text")
	errNotNumber   = errors.New("is no number of its type")
	errNotBool     = errors.New("is neither true nor false")
	errNotSlice    = errors.New("is no list")
	errNotTagged   = errors.New("has not the form that the log writes")
	errNotDuration = errors.New("is no duration")
)

// DecodeParams reads what [EncodeParams] wrote. The values have exactly the Go
// types and contents they had. The empty string means no parameters. An error
// is a [*ParamError] when it is about one parameter. It is safe for
// concurrent use.
func DecodeParams(s string) ([]driver.NamedValue, error) {
	if s == "" {
		return nil, nil
	}
	var raws []json.RawMessage
	if s[0] != '[' || !utf8.ValidString(s) || json.Unmarshal([]byte(s), &raws) != nil {
		return nil, errNotParams
	}
	args := make([]driver.NamedValue, len(raws))
	for i, raw := range raws {
		args[i].Ordinal = i + 1
		if typ, err := decodeParam(raw, &args[i]); err != nil {
			return nil, &ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: typ, Err: unreadable{err}}
		}
	}
	return args, nil
}

// unreadable puts the common beginning before the reason why a parameter cannot
// be read.
type unreadable struct{ error }

func (e unreadable) Error() string { return "cannot be read from the log: it " + e.error.Error() }
func (e unreadable) Unwrap() error { return e.error }

// decodeParam reads one element of the array: a value, or a value with its
// name or place.
func decodeParam(raw json.RawMessage, a *driver.NamedValue) (typ string, err error) {
	if raw[0] == '{' {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return "", errNotTagged
		}
		if value, ok := fields["value"]; ok {
			if name, ok := fields["name"]; ok {
				if a.Name, err = decodeText(name); err != nil {
					return "", err
				}
			}
			if ordinal, ok := fields["ordinal"]; ok {
				n, err := strconv.Atoi(string(ordinal))
				if err != nil {
					return "", errNotNumber
				}
				a.Ordinal = n
			}
			raw = value
		}
	}
	a.Value, typ, err = decodeValue(raw)
	return typ, err
}

func decodeValue(raw json.RawMessage) (v any, typ string, err error) {
	switch raw[0] {
	case 'n':
		return nil, "", nil
	case 't', 'f':
		v, err = decodeBool(raw)
		return v, "bool", err
	case '"':
		v, err = decodeText(raw)
		return v, "string", err
	case '{':
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || len(fields) != 1 {
			return nil, "", errNotTagged
		}
		for tag, payload := range fields {
			v, err = decodeTagged(tag, payload)
			return v, tag, err
		}
	case '[':
		return nil, "", errNotTagged
	}
	if strings.ContainsAny(string(raw), ".eE") {
		v, err = decodeFloat64(raw)
		return v, "float64", err
	}
	v, err = decodeInt[int64](64)(raw)
	return v, "int64", err
}

// decoders holds the reader of each tag that appendValue writes.
var decoders = map[string]func(json.RawMessage) (any, error){
	"string":     boxed(decodeText),
	"[]byte":     boxed(decodeBytes),
	"time":       boxed(decodeTime),
	"duration":   boxed(decodeDuration),
	"float64":    boxed(decodeFloat64),
	"float32":    boxed(decodeFloat32),
	"int":        boxed(decodeInt[int](strconv.IntSize)),
	"int8":       boxed(decodeInt[int8](8)),
	"int16":      boxed(decodeInt[int16](16)),
	"int32":      boxed(decodeInt[int32](32)),
	"uint":       boxed(decodeUint[uint](strconv.IntSize)),
	"uint8":      boxed(decodeUint[uint8](8)),
	"uint16":     boxed(decodeUint[uint16](16)),
	"uint32":     boxed(decodeUint[uint32](32)),
	"uint64":     boxed(decodeUint[uint64](64)),
	"[]string":   boxed(decodeSlice(decodeText)),
	"[]int":      boxed(decodeSlice(decodeInt[int](strconv.IntSize))),
	"[]int8":     boxed(decodeSlice(decodeInt[int8](8))),
	"[]int16":    boxed(decodeSlice(decodeInt[int16](16))),
	"[]int32":    boxed(decodeSlice(decodeInt[int32](32))),
	"[]int64":    boxed(decodeSlice(decodeInt[int64](64))),
	"[]uint":     boxed(decodeSlice(decodeUint[uint](strconv.IntSize))),
	"[]uint16":   boxed(decodeSlice(decodeUint[uint16](16))),
	"[]uint32":   boxed(decodeSlice(decodeUint[uint32](32))),
	"[]uint64":   boxed(decodeSlice(decodeUint[uint64](64))),
	"[]float64":  boxed(decodeSlice(decodeFloat64)),
	"[]float32":  boxed(decodeSlice(decodeFloat32)),
	"[]bool":     boxed(decodeSlice(decodeBool)),
	"[][]byte":   boxed(decodeSlice(decodeBytes)),
	"[]time":     boxed(decodeSlice(decodeTime)),
	"[]duration": boxed(decodeSlice(decodeDuration)),
}

func decodeTagged(tag string, raw json.RawMessage) (any, error) {
	if decode, ok := decoders[tag]; ok {
		return decode(raw)
	}
	return decodeRegistered(tag, raw)
}

func boxed[T any](decode func(json.RawMessage) (T, error)) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		v, err := decode(raw)
		if err != nil {
			return nil, err
		}
		return v, nil
	}
}

func decodeSlice[T any](decode func(json.RawMessage) (T, error)) func(json.RawMessage) ([]T, error) {
	return func(raw json.RawMessage) ([]T, error) {
		if string(raw) == "null" {
			return nil, nil
		}
		var raws []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &raws) != nil {
			return nil, errNotSlice
		}
		s := make([]T, len(raws))
		for i := range raws {
			var err error
			if s[i], err = decode(raws[i]); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
}

func decodeInt[T int | int8 | int16 | int32 | int64](bits int) func(json.RawMessage) (T, error) {
	return func(raw json.RawMessage) (T, error) {
		n, err := strconv.ParseInt(string(raw), 10, bits)
		if err != nil {
			return 0, errNotNumber
		}
		return T(n), nil
	}
}

func decodeUint[T uint | uint8 | uint16 | uint32 | uint64](bits int) func(json.RawMessage) (T, error) {
	return func(raw json.RawMessage) (T, error) {
		n, err := strconv.ParseUint(string(raw), 10, bits)
		if err != nil {
			return 0, errNotNumber
		}
		return T(n), nil
	}
}

func decodeFloat64(raw json.RawMessage) (float64, error) {
	f, nan, err := decodeFloat(raw, 64, nan64)
	if nan != 0 {
		return math.Float64frombits(nan), err
	}
	return f, err
}

func decodeFloat32(raw json.RawMessage) (float32, error) {
	f, nan, err := decodeFloat(raw, 32, uint64(nan32))
	if nan != 0 {
		return math.Float32frombits(uint32(nan)), err
	}
	return float32(f), err
}

// decodeFloat gives a number, or the bits of a NaN.
func decodeFloat(raw json.RawMessage, bits int, usualNaN uint64) (f float64, nan uint64, err error) {
	text := string(raw)
	if raw[0] == '"' {
		if text, err = decodeText(raw); err != nil {
			return 0, 0, err
		}
		switch {
		case text == "NaN":
			return 0, usualNaN, nil
		case text == "+Inf":
			return math.Inf(1), 0, nil
		case text == "-Inf":
			return math.Inf(-1), 0, nil
		case strings.HasPrefix(text, "NaN:"):
			nan, err = strconv.ParseUint(text[len("NaN:"):], 16, bits)
			if err != nil || nan == 0 {
				return 0, 0, errNotNumber
			}
			return 0, nan, nil
		}
		return 0, 0, errNotNumber
	}
	if f, err = strconv.ParseFloat(text, bits); err != nil {
		return 0, 0, errNotNumber
	}
	return f, 0, nil
}

func decodeBool(raw json.RawMessage) (bool, error) {
	switch string(raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errNotBool
}

func decodeText(raw json.RawMessage) (string, error) {
	if raw[0] == '{' {
		b, err := decodeBase64(raw)
		return string(b), err
	}
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", errNotText
	}
	return s, nil
}

func decodeBytes(raw json.RawMessage) ([]byte, error) {
	switch raw[0] {
	case 'n':
		return nil, nil
	case '{':
		return decodeBase64(raw)
	}
	s, err := decodeText(raw)
	if err != nil {
		return nil, err
	}
	return append([]byte{}, s...), nil
}

func decodeBase64(raw json.RawMessage) ([]byte, error) {
	var odd struct{ Base64 *string }
	if json.Unmarshal(raw, &odd) != nil || odd.Base64 == nil {
		return nil, errNotText
	}
	b, err := base64.StdEncoding.DecodeString(*odd.Base64)
	if err != nil {
		return nil, errNotText
	}
	return b, nil
}

func decodeTime(raw json.RawMessage) (time.Time, error) {
	s, err := decodeText(raw)
	if err != nil {
		return time.Time{}, err
	}
	return parseTime(s)
}

func decodeDuration(raw json.RawMessage) (time.Duration, error) {
	s, err := decodeText(raw)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errNotDuration
	}
	return d, nil
}
