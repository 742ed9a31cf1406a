package ops

import (
	"cmp"
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/entry"
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
func Parameters(s entry.Statement, values bool) ([]Parameter, error) {
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

// ReadParameters reads the arguments of a statement from a JSON array: in the log's own form, or as
// [Parameters] shows them with values. It returns the log's form. ErrInvalid; its text holds no
// value.
func ReadParameters(text string) (string, error) {
	var views []struct {
		Parameter
		Type *string `json:"type"`
	}
	text = strings.TrimSpace(text)
	args, err := entry.DecodeParams(text)
	if json.Unmarshal([]byte(text), &views) == nil && len(views) > 0 && views[0].Type != nil {
		args, err = nil, nil
		for i, v := range views {
			v.Parameter.Type = ""
			if v.Type != nil {
				v.Parameter.Type = *v.Type
			}
			a, aerr := v.arg()
			if aerr != nil {
				return "", fmt.Errorf("%w: parameter %d cannot be read: %w", ErrInvalid, i+1, aerr)
			}
			args = append(args, a)
		}
	}
	for i, a := range args {
		if a.Ordinal != i+1 {
			return "", fmt.Errorf("%w: parameter %d says that it is number %d", ErrInvalid, i+1, a.Ordinal)
		}
	}
	if err == nil {
		text, err = entry.EncodeParams(args)
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

// logNames are the log's names of types with another name in Go.
var logNames = map[string]string{"time.Time": "time", "time.Duration": "duration"}

// arg reverses viewParam.
func (v Parameter) arg() (a driver.NamedValue, err error) {
	text, ok := v.Value.(string)
	number := strings.HasPrefix(v.Type, "int") || strings.HasPrefix(v.Type, "uint") || strings.HasPrefix(v.Type, "float") && !strings.Contains(text, "N") && !strings.Contains(text, "I")
	value := v.Value
	switch _, isBool := v.Value.(bool); {
	case v.Type == "null" && v.Value == nil, v.Type == "bool" && isBool:
	case !ok:
		return a, errors.New("it lacks its value, as text; true and false stand as such")
	case v.Encoding == "base64":
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return a, errors.New("its value is not base64")
		}
		if value = b; v.Type == "string" {
			value = string(b)
		}
		return driver.NamedValue{Ordinal: v.Ordinal, Name: v.Name, Value: value}, nil
	case v.Encoding != "" || strings.HasPrefix(v.Type, "[]"):
		return a, errors.New("its type is kept only in the log's own form, see typedParameters of show --show-parameters -o json")
	case v.Type == "string":
	default:
		raw := json.RawMessage(text)
		if !number {
			raw, _ = json.Marshal(text)
		}
		value = map[string]json.RawMessage{cmp.Or(logNames[v.Type], v.Type): raw}
	}
	one, err := json.Marshal([]any{value})
	if err != nil {
		return a, errors.New("its value is not of its type")
	}
	args, err := entry.DecodeParams(string(one))
	if err != nil {
		return a, errors.New("its value is not of its type, or the log does not know the type by this name")
	}
	return driver.NamedValue{Ordinal: v.Ordinal, Name: v.Name, Value: args[0].Value}, nil
}
