package postgres

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"
)

// storeSlice takes slices and arrays that the log does not keep as they are: of
// named types, of pointers, of Valuers, pgtype.Array. pgx sends a slice as an
// array, element by element, or as JSON, whole; what is kept must give both.
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

// elementAmbiguity is ambiguity for the elements of a slice, where a Valuer
// comes before everything else.
func elementAmbiguity(elem reflect.Type) string {
	if elem.Implements(reflect.TypeFor[driver.Valuer]()) || elem.Kind() == reflect.Interface {
		return ""
	}
	if why := ambiguity(elem); why != "" {
		return "of its elements " + why
	}
	return ""
}

// plainSlice gives a slice of basic elements as one of Go's own types, one of
// others (some of them NULL, or of different types) as []any, and one of slices
// as a slice of those.
func plainSlice(rv reflect.Value, depth int) (any, error) {
	if basic, ok := basicTypes[rv.Type().Elem().Kind()]; ok && !isValuer(rv.Type().Elem()) && basic.Kind() != reflect.Uint8 {
		out := reflect.MakeSlice(reflect.SliceOf(basic), rv.Len(), rv.Len())
		for i := range rv.Len() {
			out.Index(i).Set(rv.Index(i).Convert(basic))
		}
		return out.Interface(), nil
	}
	if kept, ok, err := nestedSlice(rv, depth); ok || err != nil {
		return kept, err
	}
	out := make([]any, rv.Len())
	for i := range out {
		elem := rv.Index(i).Interface()
		kept, err := store(elem, depth+1)
		if err != nil {
			return nil, fmt.Errorf("with an element %w", err)
		}
		if _, ok := kept.([]any); ok {
			return nil, refuse(rv.Interface(), "its elements are slices of mixed types")
		}
		out[i] = kept
	}
	return out, nil
}

func isValuer(t reflect.Type) bool { return t.Implements(reflect.TypeFor[driver.Valuer]()) }

// nestedSlice takes a slice of slices of a basic type.
func nestedSlice(rv reflect.Value, depth int) (kept any, ok bool, err error) {
	inner := rv.Type().Elem()
	if k := inner.Kind(); k != reflect.Slice && k != reflect.Array || isValuer(inner) {
		return nil, false, nil
	}
	basic, ok := basicTypes[inner.Elem().Kind()]
	if !ok || basic.Kind() == reflect.Uint8 || isValuer(inner.Elem()) {
		return nil, false, nil
	}
	out := reflect.MakeSlice(reflect.SliceOf(reflect.SliceOf(basic)), rv.Len(), rv.Len())
	for i := range rv.Len() {
		row, err := storeSlice(rv.Index(i), depth+1)
		if err != nil {
			return nil, false, err
		}
		if row == nil {
			continue
		}
		out.Index(i).Set(reflect.ValueOf(row))
	}
	kept, err = store(out.Interface(), depth+1)
	return kept, true, err
}

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// typeMaps lend out pgx's type maps, which are not safe for concurrent use.
var typeMaps = sync.Pool{New: func() any { return pgtype.NewMap() }}

// storeText keeps a range or multirange as the text that pgx makes of it: sent
// as it is, the server reads the same value from it.
func storeText(v any) (any, error) {
	m, ok := typeMaps.Get().(*pgtype.Map)
	if !ok {
		m = pgtype.NewMap()
	}
	defer typeMaps.Put(m)
	t, ok := m.TypeForValue(v)
	if !ok {
		return nil, refuse(v, "pgx knows no column type for it by itself: pass one of pgtype's own ranges (of Int4, Int8, Numeric, Date, Timestamp, Timestamptz)")
	}
	text, err := m.Encode(t.OID, pgtype.TextFormatCode, v, nil)
	if err != nil {
		return nil, refuse(v, "pgx cannot write it as text")
	}
	if text == nil {
		return nil, nil
	}
	return string(text), nil
}
