package ops

import (
	"database/sql/driver"
	"encoding/base64"
	"fmt"
	"reflect"
	"strconv"
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
	// Value is there only when it was asked for: true and false as such, everything
	// else as text, so that whole numbers keep all their digits. With Encoding
	// base64 it is bytes.
	Value    any    `json:"value,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

// Parameters gives the arguments of a statement; with values only for who may see
// them.
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
		if values {
			v.Value = x
		}
	case string:
		v.text(x, values)
	case []byte:
		v.Type = "[]byte"
		v.size(len(x))
		if values {
			v.base64(x)
		}
	case time.Time:
		if values {
			v.Value = x.Format(time.RFC3339Nano)
		}
	default:
		if values {
			v.Value = valueText(x)
		}
	}
	return v
}

func valueText(x any) string {
	switch r := reflect.ValueOf(x); r.Kind() {
	case reflect.Float32:
		return strconv.FormatFloat(r.Float(), 'g', -1, 32)
	case reflect.Float64:
		return strconv.FormatFloat(r.Float(), 'g', -1, 64)
	}
	return fmt.Sprint(x)
}

func (v *Parameter) size(n int) { v.Size = &n }

func (v *Parameter) text(s string, values bool) {
	v.size(len(s))
	switch {
	case !values:
	case utf8.ValidString(s):
		v.Value = s
	default:
		v.base64([]byte(s))
	}
}

func (v *Parameter) base64(b []byte) {
	v.Value, v.Encoding = base64.StdEncoding.EncodeToString(b), "base64"
}
