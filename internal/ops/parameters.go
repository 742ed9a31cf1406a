package ops

import (
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/txlog"
)

// Parameter is an argument of a statement.
type Parameter struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name,omitempty"`
	// Type is its Go type; "null" for none.
	Type string `json:"type"`
	// Size is its length in bytes; only texts and bytes have one.
	Size *int `json:"size,omitempty"`
	// Value is set only on request: booleans as such, everything else as text, so that integers
	// keep all their digits. Encoding base64 marks bytes.
	Value    any    `json:"value,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

// Parameters returns the arguments of a statement. Pass values only for users who may see them.
func Parameters(s txlog.Statement, values bool) ([]Parameter, error) {
	args, err := s.Args()
	if err != nil {
		return nil, err
	}
	views := make([]Parameter, len(args))
	for i, a := range args {
		views[i] = viewParam(a, values)
	}
	return views, nil
}

func viewParam(a driver.NamedValue, values bool) Parameter {
	v := Parameter{Ordinal: a.Ordinal, Name: a.Name, Type: "null"}
	if a.Value != nil {
		v.Type = fmt.Sprintf("%T", a.Value)
	}
	switch x := a.Value.(type) {
	case nil:
	case bool:
		v.Value = x
	case string:
		if v.bytes([]byte(x)); utf8.ValidString(x) {
			v.Value, v.Encoding = x, ""
		}
	case []byte:
		v.Type = "[]byte"
		v.bytes(x)
	case time.Time:
		v.Value = x.Format(time.RFC3339Nano)
	case float32:
		v.Value = strconv.FormatFloat(float64(x), 'g', -1, 32)
	case float64:
		v.Value = strconv.FormatFloat(x, 'g', -1, 64)
	default:
		v.Value = fmt.Sprint(x)
	}
	if !values {
		v.Value, v.Encoding = nil, ""
	}
	return v
}

func (v *Parameter) bytes(b []byte) {
	n := len(b)
	v.Size, v.Value, v.Encoding = &n, base64.StdEncoding.EncodeToString(b), "base64"
}

// ReadParameters reads the arguments of a statement from a JSON array in the log's own form, and
// returns them as the log writes them. ErrInvalid; its text holds no value.
func ReadParameters(text string) (string, error) {
	var shown []struct {
		Ordinal int `json:"ordinal"`
	}
	_ = json.Unmarshal([]byte(text), &shown) // fails for other elements than objects
	for i, one := range shown {
		if one.Ordinal != 0 { // its value is a text, whatever its type
			return "", fmt.Errorf("%w: parameter %d is as show prints it in parameters: take it from typedParameters", ErrInvalid, i+1)
		}
	}
	args, err := txlog.DecodeParams(strings.TrimSpace(text))
	if err == nil {
		text, err = txlog.EncodeParams(args)
	}
	one := (*txlog.ParamError)(nil)
	switch {
	case errors.As(err, &one): // what it calls a type may be a value that was misplaced
		return "", fmt.Errorf("%w: parameter %d is not in the form that the log keeps, such as 1, \"text\" or {\"uint64\":7}", ErrInvalid, one.Ordinal)
	case err != nil:
		return "", fmt.Errorf("%w: the parameters are not an array in JSON, such as [1, \"text\"]", ErrInvalid)
	}
	return text, nil
}
