package postgres

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/bedsql/bed/internal/entry"
	"github.com/jackc/pgx/v5/pgtype"
)

// storeSlice stores slices and arrays that the log does not keep as they are: of named
// types, of pointers, of Valuers, pgtype.Array. pgx sends a slice as an array, element by
// element, or as JSON, whole; the kept value must allow both.
func storeSlice(rv reflect.Value, depth int) (any, error) {
	v, t := rv.Interface(), rv.Type()
	if rv.Kind() == reflect.Slice && rv.IsNil() {
		return nil, nil
	}
	if t.Implements(reflect.TypeFor[fmt.Stringer]()) || isJSON(t) {
		return nil, refuse(v, "pgx calls its String or MarshalJSON method for some column types and not for others")
	}
	elem := t.Elem()
	if why := elementAmbiguity(elem); why != "" {
		return nil, refuse(v, why)
	}
	kept, err := plainSlice(rv, depth)
	if err != nil {
		return nil, err
	}
	text := jsonOf(v)
	if text != "" && text == jsonOf(kept) {
		return kept, nil
	}
	list := reflect.ValueOf(kept)
	a := array{dims: []pgtype.ArrayDimension{{Length: int32(list.Len()), LowerBound: 1}}, elements: make([]any, list.Len()), text: text} //nolint:gosec // it is in memory
	for i := range a.elements {
		if elem := list.Index(i); elem.Kind() != reflect.Pointer {
			a.elements[i] = elem.Interface()
		} else if !elem.IsNil() {
			a.elements[i] = elem.Elem().Interface()
		}
	}
	return a, nil
}

// array is the kept form of an array whose JSON differs from its elements': pgx sends the elements to
// an array column, and the JSON to a json column.
type array struct {
	dims     []pgtype.ArrayDimension // nil is NULL
	elements []any
	// text is its JSON; empty if it has none.
	text string
}

var (
	_ pgtype.ArrayGetter = array{}
	_ json.Marshaler     = array{}
)

func (a array) Dimensions() []pgtype.ArrayDimension { return a.dims }
func (a array) Index(i int) any                     { return a.elements[i] }

// IndexType returns nil: each element has a type of its own.
func (array) IndexType() any { return nil }

func (a array) MarshalJSON() ([]byte, error) {
	if a.text == "" {
		return nil, errors.New("it has no JSON")
	}
	return []byte(a.text), nil
}

// jsonOf returns the JSON of v; empty if it has none.
func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// pgtypeArray returns v if it is a pgtype.Array.
func pgtypeArray(v any) (a pgtype.ArrayGetter, ok bool) {
	t := reflect.TypeOf(v)
	if t.PkgPath() != reflect.TypeFor[pgtype.Date]().PkgPath() || !strings.HasPrefix(t.Name(), "Array[") {
		return nil, false
	}
	a, ok = v.(pgtype.ArrayGetter)
	return a, ok
}

// storeArray stores a pgtype.Array.
func storeArray(v pgtype.ArrayGetter, depth int) (any, error) {
	n, _ := cardinality(v.Dimensions())
	a := array{dims: v.Dimensions(), text: jsonOf(v), elements: make([]any, n)}
	for i := range a.elements {
		var err error
		if a.elements[i], err = store(v.Index(i), depth+1); err != nil {
			return nil, fmt.Errorf("with an element %w", err)
		}
	}
	return a, nil
}

// cardinality returns the number of elements, at most an int32 as in the server.
func cardinality(dims []pgtype.ArrayDimension) (n int, ok bool) {
	n = 1
	for _, d := range dims {
		if n *= int(d.Length); d.Length < 0 || n > math.MaxInt32 {
			return 0, false
		}
	}
	if len(dims) == 0 {
		n = 0
	}
	return n, true
}

// decodeArray reads the dimensions, the JSON and the elements.
func decodeArray(s string) (a array, err error) {
	list, err := decodeList[any](s)
	if err != nil || len(list) < 2 {
		return a, errUnreadable
	}
	dims, _ := list[0].(string)
	a.text, _ = list[1].(string)
	a.elements = list[2:]
	if json.Unmarshal([]byte(dims), &a.dims) != nil {
		return a, errUnreadable
	}
	if n, ok := cardinality(a.dims); !ok || n != len(a.elements) {
		return a, errUnreadable
	}
	return a, nil
}

// elementAmbiguity is ambiguity for the elements of a slice, where a Valuer comes before
// everything else.
func elementAmbiguity(elem reflect.Type) string {
	if elem.Implements(reflect.TypeFor[driver.Valuer]()) || elem.Kind() == reflect.Interface || exact[elem] || elem.Kind() == reflect.Pointer && exact[elem.Elem()] {
		return ""
	}
	if why := ambiguity(elem); why != "" {
		return "of its elements " + why
	}
	return ""
}

// plainSlice returns a slice of basic elements as one of Go's own types, and a slice of
// other elements (some NULL, or of different types) as []any.
func plainSlice(rv reflect.Value, depth int) (any, error) {
	if basic, ok := basicTypes[rv.Type().Elem().Kind()]; ok && !isValuer(rv.Type().Elem()) && basic.Kind() != reflect.Uint8 {
		out := reflect.MakeSlice(reflect.SliceOf(basic), rv.Len(), rv.Len())
		for i := range rv.Len() {
			out.Index(i).Set(rv.Index(i).Convert(basic))
		}
		return out.Interface(), nil
	}
	out := make([]any, rv.Len())
	for i := range out {
		kept, err := store(rv.Index(i).Interface(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("with an element %w", err)
		}
		out[i] = kept
	}
	switch elem := rv.Type().Elem(); {
	case elem.Kind() == reflect.Interface:
		return out, nil
	case (elem.Kind() == reflect.Slice || elem.Kind() == reflect.Array) && !isValuer(elem) && elem.Elem().Kind() != reflect.Uint8:
		// pgx makes arrays of several dimensions only of such types.
		return nil, refuse(rv.Interface(), "only slices of slices of Go's own types can be")
	}
	return oneType(out), nil
}

// oneType returns elements of one basic type as a slice of that type, or of pointers to it
// if some are nil. pgx may have to infer the column's type from the value, which []any does
// not allow.
func oneType(list []any) any {
	var t reflect.Type
	null := false
	for _, v := range list {
		switch {
		case v == nil:
			null = true
		case t == nil:
			t = reflect.TypeOf(v)
		case t != reflect.TypeOf(v):
			return list
		}
	}
	if t == nil {
		return list
	}
	elem := t
	if null && t != reflect.TypeFor[json.RawMessage]() { // it can be NULL itself
		elem = reflect.PointerTo(t)
	}
	typed := reflect.MakeSlice(reflect.SliceOf(elem), len(list), len(list))
	for i, v := range list {
		switch {
		case v == nil:
		case elem == t:
			typed.Index(i).Set(reflect.ValueOf(v))
		default:
			p := reflect.New(t)
			p.Elem().Set(reflect.ValueOf(v))
			typed.Index(i).Set(p)
		}
	}
	out := typed.Interface()
	if _, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: out}}); err != nil {
		return list
	}
	return out
}

func isValuer(t reflect.Type) bool { return t.Implements(reflect.TypeFor[driver.Valuer]()) }
