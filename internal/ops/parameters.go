package ops

import (
	"database/sql/driver"
	"encoding/base64"
	"fmt"
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
