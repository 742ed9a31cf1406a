package cli

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

// paramView is a parameter as JSON shows it.
type paramView struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name,omitempty"`
	// Type is its Go type; "null" for none.
	Type string `json:"type"`
	// Size is its length in bytes; only texts and bytes have one.
	Size *int `json:"size,omitempty"`
	// Value is there only when it was asked for.
	Value    any    `json:"value,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

const paramHelp = `
Parameters hold the application's data: show prints their types and sizes, and their
values only with --show-parameters. What the application wrote into the SQL text
itself is part of the SQL and is printed, and so is what the database says in its
error message.

In JSON each statement also has its parameters: ordinal, name, type, size in bytes,
and with --show-parameters the value: true and false as such, everything else as
text (whole numbers keep all their digits); with encoding base64 it is bytes.`

func paramViews(s txlog.Statement, values bool) ([]paramView, error) {
	args, err := s.Args()
	if err != nil {
		return nil, err
	}
	views := make([]paramView, len(args))
	for i, a := range args {
		views[i] = viewParam(a, values)
	}
	return views, nil
}

func viewParam(a driver.NamedValue, values bool) paramView {
	v := paramView{Ordinal: a.Ordinal, Name: a.Name, Type: "null"}
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

func (v *paramView) size(n int) { v.Size = &n }

func (v *paramView) text(s string, values bool) {
	v.size(len(s))
	switch {
	case !values:
	case utf8.ValidString(s):
		v.Value = s
	default:
		v.base64([]byte(s))
	}
}

func (v *paramView) base64(b []byte) {
	v.Value, v.Encoding = base64.StdEncoding.EncodeToString(b), "base64"
}

// line is the parameter for an operator: "1 @name  string, 12 bytes", and with
// its value when values are shown.
func (v paramView) line(values bool) string {
	s := strconv.Itoa(v.Ordinal)
	if v.Name != "" {
		s += " @" + printable(v.Name)
	}
	s += "\t" + printable(v.Type)
	if v.Size != nil {
		s += fmt.Sprintf(", %d bytes", *v.Size)
	}
	if !values {
		return s
	}
	switch x, _ := v.Value.(string); {
	case v.Value == nil:
		return s + "\tNULL"
	case v.Encoding != "":
		return s + "\t" + v.Encoding + " " + x
	case v.Type == "string":
		return s + "\t" + strconv.Quote(x)
	default:
		return s + "\t" + printable(fmt.Sprint(v.Value))
	}
}
