package mysql

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/bedsql/bed/bedsql/internal/dialects"
)

// checkNamedValue converts a parameter like the driver's connection, without a connection.
func checkNamedValue(nv *driver.NamedValue) error {
	v, err := convert(nv.Value)
	if err == nil {
		nv.Value = v
	}
	return err
}

// convert is database/sql's default conversion with the driver's differences: unsigned
// integers stay unsigned at full width, and json.RawMessage keeps its type.
func convert(v any) (driver.Value, error) {
	if driver.IsValue(v) {
		return v, nil
	}
	if valuer, ok := v.(driver.Valuer); ok {
		v, err := dialects.Value(valuer)
		if _, ok := v.(uint64); err == nil && !ok && !driver.IsValue(v) {
			return nil, fmt.Errorf("non-Value type %T returned from Value", v)
		}
		return v, err
	}
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil
	}
	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Pointer:
		if rv.IsNil() {
			return nil, nil
		}
		return convert(rv.Elem().Interface())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return rv.Uint(), nil
	}
	return driver.DefaultParameterConverter.ConvertValue(v)
}

// storable turns json.RawMessage into a string: the driver sends both as text. With
// interpolateParams, a []byte would be marked _binary, which MySQL rejects for a JSON
// column. The log keeps all other values of the driver.
func storable(v any) (any, error) {
	raw, ok := v.(json.RawMessage)
	switch {
	case !ok:
		return v, nil
	case raw == nil:
		return nil, nil
	default:
		return string(raw), nil
	}
}
