package postgres

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// pgx sends a value according to its Go type and to the server's type of the parameter. The
// latter is unknown before the statement is prepared, and the database may be down; so the
// kept value must be sent in the same way whatever the parameter's type. A value without
// that guarantee is rejected, with a hint to another type.

// maxDepth bounds pointers to pointers and Valuers that return Valuers.
const maxDepth = 8

// storable turns a pgx parameter into a value for the log. byTypes means that a hook may
// register types with pgx: for such a type a map or a struct is not JSON.
func storable(v any, byTypes bool) (any, error) {
	kept, err := store(v, 0)
	if err == nil && byTypes && holdsDocument(kept) {
		return nil, refuse(v, "by types that its connections register (AfterConnect), pgx may send it otherwise than as JSON; "+
			"for a json column pass json.RawMessage")
	}
	return kept, err
}

func holdsDocument(v any) bool {
	switch v := v.(type) {
	case document, []document:
		return true
	case []any:
		return slices.ContainsFunc(v, holdsDocument)
	case array:
		return holdsDocument(v.elements)
	case pgx.NamedArgs:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), holdsDocument)
	case pgx.StrictNamedArgs:
		return holdsDocument(pgx.NamedArgs(v))
	}
	return false
}

// sendable implements Dialect.Sendable. In the modes without a query for parameter types,
// pgx's ability to encode is known before there is a connection. pgx must know the type of a
// slice, and of its kept form.
func sendable(mode pgx.QueryExecMode, given []driver.NamedValue, call dialect.Call) (int, error) {
	var types *pgtype.Map
	for i, a := range call.Args {
		if v, ok := a.Value.(pgx.QueryExecMode); ok {
			mode = v
			continue
		}
		if call.Prepared && !special(call.Args) || mode != pgx.QueryExecModeExec && mode != pgx.QueryExecModeSimpleProtocol {
			return 0, nil
		}
		if types == nil {
			types, _ = typeMaps.Get().(*pgtype.Map)
			defer typeMaps.Put(types)
		}
		was := named(given[i].Value)
		for name, v := range named(a.Value) {
			_, err := types.Encode(0, pgtype.TextFormatCode, v, nil)
			if t := reflect.TypeOf(was[name]); err == nil && t != nil && !isValuer(t) && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
				_, err = types.Encode(0, pgtype.TextFormatCode, was[name], nil)
			}
			if err != nil {
				return i, errUnsent
			}
		}
	}
	return 0, nil
}

// named returns the values of an argument by their names.
func named(v any) map[string]any {
	switch v := v.(type) {
	case pgx.NamedArgs:
		return v
	case pgx.StrictNamedArgs:
		return v
	}
	return map[string]any{"": v}
}

// typeMaps holds pgx's own types; a map is used by one goroutine at a time.
var typeMaps = sync.Pool{New: func() any { return pgtype.NewMap() }}

var errUnsent = errors.New("cannot be sent: pgx does not know its type in the mode of the connection (exec or simple_protocol); " +
	"pass a string, a number, a time or json.RawMessage instead")

func store(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, refuse(v, "it leads to further values without end")
	}
	switch x := v.(type) {
	case nil, bool, string, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64,
		time.Time, time.Duration:
		return v, nil
	case []byte, []bool, []string, []int, []int8, []int16, []int32, []int64, []uint, []uint16, []uint32, []uint64,
		[]float32, []float64, [][]byte, []time.Time, []time.Duration:
		if reflect.ValueOf(v).IsNil() { // pgx sends NULL
			return nil, nil
		}
		return v, nil
	case *big.Int: // pgx sends its digits, as a number or as JSON
		if x == nil {
			return nil, nil
		}
		return x.String(), nil
	case pgx.NamedArgs:
		m, err := storeArgs(x, depth)
		return pgx.NamedArgs(m), err
	case pgx.StrictNamedArgs:
		m, err := storeArgs(x, depth)
		return pgx.StrictNamedArgs(m), err
	case pgx.QueryRewriter:
		return nil, refuse(v, "it rewrites the statement: use pgx.NamedArgs, or $1, $2 …")
	case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return nil, refuse(v, "it is an option of the query and no value: leave it out, database/sql sets it")
	}
	a, isArray := pgtypeArray(v)
	if isArray {
		held := reflect.ValueOf(v).FieldByName("Elements").Len()
		if n, ok := cardinality(a.Dimensions()); !ok || n > held {
			return nil, refuse(v, "it has fewer elements than its dimensions say")
		}
	}
	if exact[reflect.TypeOf(v)] {
		if rv := reflect.ValueOf(v); (rv.Kind() == reflect.Slice || rv.Kind() == reflect.Pointer) && rv.IsNil() {
			return nil, nil
		}
		return v, nil
	}
	if isArray {
		return storeArray(a, depth)
	}
	if valuer, ok := v.(driver.Valuer); ok {
		// pgx calls Value too, unless it has a form of the type for the parameter's. For the types of
		// pgtype with one, the result is the same.
		inner, err := dialects.Value(valuer)
		if err != nil {
			return nil, refuse(v, "its Value method failed: "+err.Error())
		}
		return store(inner, depth+1)
	}
	return storeReflect(v, depth)
}

func storeArgs(args map[string]any, depth int) (map[string]any, error) {
	out := make(map[string]any, len(args))
	for name, arg := range args {
		kept, err := store(arg, depth+1)
		if err != nil {
			return nil, fmt.Errorf("@%s %w", name, err)
		}
		out[name] = kept
	}
	return out, nil
}

// storeReflect stores types according to their kind.
func storeReflect(v any, depth int) (any, error) {
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer:
		return storePointer(rv, depth)
	case reflect.Map, reflect.Struct:
		return storeJSON(rv)
	case reflect.Slice:
		if rv.Type().AssignableTo(reflect.TypeFor[[]byte]()) {
			return storeNamed(rv, reflect.TypeFor[[]byte](), depth)
		}
		return storeSlice(rv, depth)
	case reflect.Array:
		if rv.Type().ConvertibleTo(reflect.TypeFor[[16]byte]()) {
			return storeNamed(rv, reflect.TypeFor[[16]byte](), depth)
		}
		return storeSlice(rv, depth)
	}
	if basic, ok := basicTypes[rv.Kind()]; ok {
		return storeNamed(rv, basic, depth)
	}
	return nil, refuse(v, "pgx takes no "+rv.Kind().String())
}

func storePointer(rv reflect.Value, depth int) (any, error) {
	if rv.IsNil() {
		return nil, nil
	}
	elem := rv.Elem()
	// Following the pointer would lose its methods.
	t := rv.Type()
	if why := ambiguity(t); why != "" && ambiguity(t.Elem()) == "" {
		return nil, refuse(rv.Interface(), why)
	}
	if k := elem.Kind(); (k == reflect.Struct || k == reflect.Map) && isJSON(t) && !isJSON(t.Elem()) {
		return marshal(rv.Interface())
	}
	return store(elem.Interface(), depth+1)
}

// basicTypes are Go's own types of each kind.
var basicTypes = map[reflect.Kind]reflect.Type{
	reflect.Bool: reflect.TypeFor[bool](), reflect.String: reflect.TypeFor[string](),
	reflect.Int: reflect.TypeFor[int](), reflect.Int8: reflect.TypeFor[int8](), reflect.Int16: reflect.TypeFor[int16](),
	reflect.Int32: reflect.TypeFor[int32](), reflect.Int64: reflect.TypeFor[int64](),
	reflect.Uint: reflect.TypeFor[uint](), reflect.Uint8: reflect.TypeFor[uint8](), reflect.Uint16: reflect.TypeFor[uint16](),
	reflect.Uint32: reflect.TypeFor[uint32](), reflect.Uint64: reflect.TypeFor[uint64](),
	reflect.Float32: reflect.TypeFor[float32](), reflect.Float64: reflect.TypeFor[float64](),
}

// storeNamed keeps a named type as its underlying type.
func storeNamed(rv reflect.Value, basic reflect.Type, depth int) (any, error) {
	t := rv.Type()
	if why := ambiguity(t); why != "" {
		return nil, refuse(rv.Interface(), why)
	}
	if isJSON(t) {
		return nil, refuse(rv.Interface(), "pgx calls its MarshalJSON for a json column and not for others")
	}
	return store(rv.Convert(basic).Interface(), depth+1)
}

// storeJSON keeps maps and structs as pgx's JSON.
func storeJSON(rv reflect.Value) (any, error) {
	if rv.Kind() == reflect.Map && rv.IsNil() {
		return nil, nil
	}
	if why := ambiguity(rv.Type()); why != "" {
		return nil, refuse(rv.Interface(), why)
	}
	return marshal(rv.Interface())
}

func marshal(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, refuse(v, "it cannot be written as JSON")
	}
	return document{string(text)}, nil
}

// document is the JSON of a map or a struct. pgx sends it to json columns only, like these.
type document struct{ text string }

// MarshalJSON implements json.Marshaler.
func (d document) MarshalJSON() ([]byte, error) { return []byte(d.text), nil }

func isJSON(t reflect.Type) bool { return t.Implements(reflect.TypeFor[json.Marshaler]()) }

// ambiguity returns why pgx's form of a value of type t depends on the parameter's type;
// empty if it does not.
func ambiguity(t reflect.Type) string {
	// A string stays a string, even with a String method.
	if t.Kind() != reflect.String && t.Implements(reflect.TypeFor[fmt.Stringer]()) {
		return "pgx calls its String method for some column types and not for others"
	}
	for _, i := range codecInterfaces {
		if t.Implements(i) {
			return "pgx calls its " + i.Method(0).Name + " method for some column types and not for others"
		}
	}
	return ""
}

// codecInterfaces are the interfaces that give pgx a type's value for one kind of column.
var codecInterfaces = []reflect.Type{
	reflect.TypeFor[pgtype.ArrayGetter](), reflect.TypeFor[pgtype.BitsValuer](), reflect.TypeFor[pgtype.BoolValuer](),
	reflect.TypeFor[pgtype.BoxValuer](), reflect.TypeFor[pgtype.BytesValuer](), reflect.TypeFor[pgtype.CircleValuer](),
	reflect.TypeFor[pgtype.CompositeIndexGetter](), reflect.TypeFor[pgtype.DateValuer](),
	reflect.TypeFor[pgtype.Float64Valuer](), reflect.TypeFor[pgtype.HstoreValuer](), reflect.TypeFor[pgtype.Int64Valuer](),
	reflect.TypeFor[pgtype.IntervalValuer](), reflect.TypeFor[pgtype.LineValuer](), reflect.TypeFor[pgtype.LsegValuer](),
	reflect.TypeFor[pgtype.MultirangeGetter](), reflect.TypeFor[pgtype.NetipPrefixValuer](),
	reflect.TypeFor[pgtype.NumericValuer](), reflect.TypeFor[pgtype.PathValuer](), reflect.TypeFor[pgtype.PointValuer](),
	reflect.TypeFor[pgtype.PolygonValuer](), reflect.TypeFor[pgtype.RangeValuer](), reflect.TypeFor[pgtype.TextValuer](),
	reflect.TypeFor[pgtype.TIDValuer](), reflect.TypeFor[pgtype.TimeValuer](), reflect.TypeFor[pgtype.TimestampValuer](),
	reflect.TypeFor[pgtype.TimestamptzValuer](), reflect.TypeFor[pgtype.Uint32Valuer](), reflect.TypeFor[pgtype.UUIDValuer](),
}

var errInstead = errors.New("give the type a Value method (driver.Valuer), or pass a string, a number or a time instead")

func refuse(v any, why string) error {
	return fmt.Errorf("of type %T cannot be kept in the transaction log: %s; %w", v, why, errInstead)
}
