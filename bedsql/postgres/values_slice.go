package postgres

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/bedsql/bed/internal/entry"
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
	if !sameJSON(v, kept) {
		return nil, refuse(v, "pgx sends it in one way to an array column and in another to a json column")
	}
	return kept, nil
}

// elementAmbiguity is ambiguity for the elements of a slice, where a Valuer comes before
// everything else.
func elementAmbiguity(elem reflect.Type) string {
	if elem.Implements(reflect.TypeFor[driver.Valuer]()) || elem.Kind() == reflect.Interface {
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
	var out any = list
	if t == nil {
		return out
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
	out = typed.Interface()
	if _, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: out}}); err != nil {
		return list
	}
	return out
}

func isValuer(t reflect.Type) bool { return t.Implements(reflect.TypeFor[driver.Valuer]()) }

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
