package postgres

import (
	"bytes"
	"database/sql/driver"
	"encoding"
	"encoding/gob"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The log must return these types unchanged, because pgx sends each of them in several ways,
// depending on the column.
func init() {
	registerBytes[json.RawMessage]("json.RawMessage")
	registerParam("[16]byte",
		func(v [16]byte) (string, error) { return string(v[:]), nil },
		func(s string) (v [16]byte, err error) {
			if copy(v[:], s) != len(v) || len(s) != len(v) {
				err = errors.New("it is not 16 bytes long")
			}
			return v, err
		})
	registerParam("json", func(v document) (string, error) { return v.text, nil }, func(s string) (document, error) { return document{s}, nil })
	registerParam("[]json", encodeList[document], decodeList[document])
	registerBytes[net.IP]("net.IP") // 4 and 16 bytes are distinguished
	registerBytes[net.HardwareAddr]("net.HardwareAddr")
	registerWhole[net.IPNet]("net.IPNet")
	registerWhole[*net.IPNet]("*net.IPNet")
	registerText[netip.Addr]("netip.Addr")
	registerText[netip.Prefix]("netip.Prefix")
	registerList[net.IPNet]()
	registerList[[16]byte]()
	registerParam("pgx.QueryExecMode",
		func(v pgx.QueryExecMode) (string, error) { return strconv.Itoa(int(v)), nil },
		func(s string) (pgx.QueryExecMode, error) {
			n, err := strconv.ParseInt(s, 10, 32)
			return pgx.QueryExecMode(n), err
		})
	registerParam("pgx.NamedArgs", encodeArgs[pgx.NamedArgs], decodeArgs[pgx.NamedArgs])
	registerParam("pgx.StrictNamedArgs", encodeArgs[pgx.StrictNamedArgs], decodeArgs[pgx.StrictNamedArgs])
	registerParam("[]any", encodeList[any], decodeList[any])
	delete(exact, reflect.TypeFor[[]any]()) // its elements may be of any type
	registerParam("array",
		func(a array) (string, error) { return encodeList(append([]any{jsonOf(a.dims), a.text}, a.elements...)) }, decodeArray)
	registerSlices[bool]()
	registerSlices[string]()
	registerSlices[int]()
	registerSlices[int16]()
	registerSlices[int32]()
	registerSlices[int64]()
	registerSlices[float32]()
	registerSlices[float64]()
	registerPointers[time.Time]()
	registerDay[pgtype.Date]("pgtype.Date")
	registerDay[pgtype.Timestamp]("pgtype.Timestamp")
	registerDay[pgtype.Timestamptz]("pgtype.Timestamptz")
	registerWhole[[]pgtype.Numeric]("[]pgtype.Numeric")
	registerWhole[[]pgtype.Interval]("[]pgtype.Interval")
	registerWhole[[]pgtype.Time]("[]pgtype.Time")
	registerArray[bool]()
	registerArray[int16]()
	registerArray[int32]()
	registerArray[int64]()
	registerArray[float32]()
	registerArray[float64]()
	registerArray[string]()
	registerArray[time.Time]()
	registerArray[pgtype.Numeric]()
	registerRange[int]("int")
	registerRange[int32]("int32")
	registerRange[int64]("int64")
	registerRange[float64]("float64")
	registerRange[time.Time]("time")
	registerRange[pgtype.Int4]("Int4")
	registerRange[pgtype.Int8]("Int8")
	registerRange[pgtype.Float8]("Float8")
	registerRange[pgtype.Numeric]("Numeric")
	registerRange[pgtype.Date]("Date")
	registerRange[pgtype.Timestamp]("Timestamp")
	registerRange[pgtype.Timestamptz]("Timestamptz")
}

// exact are the types that the log returns unchanged because they are registered here.
var exact = map[reflect.Type]bool{}

// day is the form of pgtype's times.
type day struct {
	Time             time.Time
	InfinityModifier pgtype.InfinityModifier
	Valid            bool
}

// registerDay registers a type of a time, and its slices. Its Value method returns a time.Time, which
// pgx would send as a moment.
func registerDay[T pgtype.Date | pgtype.Timestamp | pgtype.Timestamptz](name string) {
	registerList[T]()
	registerParam(name,
		func(v T) (string, error) {
			d := day(v)
			return encodeList([]any{d.Time, int64(d.InfinityModifier), d.Valid})
		},
		func(s string) (v T, err error) {
			list, err := decodeList[any](s)
			if err != nil || len(list) != 3 {
				return v, errUnreadable
			}
			t, ok1 := list[0].(time.Time)
			infinity, ok2 := list[1].(int64)
			valid, ok3 := list[2].(bool)
			if !ok1 || !ok2 || !ok3 {
				err = errUnreadable
			}
			return T(day{t, pgtype.InfinityModifier(infinity), valid}), err
		})
}

func registerRange[T any](name string) {
	registerWhole[pgtype.Range[T]]("pgtype.Range[" + name + "]")
	registerWhole[pgtype.Multirange[pgtype.Range[T]]]("pgtype.Multirange[" + name + "]")
}

// registerWhole registers a type by its exported fields, which are its only ones.
func registerWhole[T any](name string) {
	registerParam(name,
		func(v T) (string, error) {
			var b bytes.Buffer
			err := gob.NewEncoder(&b).Encode(&v)
			return b.String(), err
		},
		func(s string) (v T, err error) {
			err = gob.NewDecoder(strings.NewReader(s)).Decode(&v)
			if list := reflect.ValueOf(&v).Elem(); list.Kind() == reflect.Slice && list.IsNil() {
				list.Set(reflect.MakeSlice(list.Type(), 0, 0)) // gob does not tell them apart, and a nil one is NULL
			}
			return v, err
		})
}

func registerPointers[T any]() {
	registerParam("[]*"+reflect.TypeFor[T]().String(),
		func(list []*T) (string, error) {
			values := make([]any, len(list))
			for i, p := range list {
				if p != nil {
					values[i] = *p
				}
			}
			return encodeList(values)
		},
		func(s string) ([]*T, error) {
			values, err := decodeList[any](s)
			list := make([]*T, len(values))
			for i, v := range values {
				if t, ok := v.(T); ok {
					list[i] = &t
				} else if v != nil {
					return nil, errUnreadable
				}
			}
			return list, err
		})
}

func registerParam[T any](name string, encode func(T) (string, error), decode func(string) (T, error)) {
	var sample T
	exact[reflect.TypeFor[T]()] = true
	txlog.RegisterParamType(name, sample,
		func(v any) (string, error) { return encode(v.(T)) },
		func(s string) (any, error) {
			v, err := decode(s)
			if err != nil {
				return nil, errUnreadable
			}
			return v, nil
		})
}

var errUnreadable = errors.New("its text cannot be read")

// registerSlices registers slices of slices, and of pointers.
func registerSlices[T any]() {
	registerParam("[]"+reflect.TypeFor[[]T]().String(), encodeList[[]T], decodeList[[]T])
	registerPointers[T]()
}

// registerArray registers a pgtype.Array whose slice of elements is known.
func registerArray[T any]() {
	registerParam("pgtype.Array["+reflect.TypeFor[T]().String()+"]",
		func(a pgtype.Array[T]) (string, error) { return encodeList([]any{a.Elements, jsonOf(a.Dims), a.Valid}) },
		func(s string) (a pgtype.Array[T], err error) {
			list, err := decodeList[any](s)
			if err != nil || len(list) != 3 {
				return a, errUnreadable
			}
			a.Elements, _ = list[0].([]T)
			dims, _ := list[1].(string)
			a.Valid, _ = list[2].(bool)
			return a, json.Unmarshal([]byte(dims), &a.Dims)
		})
}

// registerList registers slices of a registered type.
func registerList[T any]() {
	registerParam("[]"+reflect.TypeFor[T]().String(), encodeList[T], decodeList[T])
}

// encodeList writes elements in the log's form of parameters.
func encodeList[T any](list []T) (string, error) {
	args := make([]driver.NamedValue, len(list))
	for i, v := range list {
		args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
		if rv := reflect.ValueOf(v); rv.Kind() == reflect.Slice && rv.IsNil() {
			args[i].Value = nil
		}
	}
	return entry.EncodeParams(args)
}

func decodeList[T any](s string) ([]T, error) {
	args, err := entry.DecodeParams(s)
	list := make([]T, len(args))
	for i, a := range args {
		v, ok := a.Value.(T)
		if !ok && a.Value != nil {
			return nil, errUnreadable
		}
		list[i] = v
	}
	return list, err
}

// encodeArgs writes named arguments in the log's form of named parameters.
func encodeArgs[M ~map[string]any](m M) (string, error) {
	args := make([]driver.NamedValue, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		args = append(args, driver.NamedValue{Name: name, Ordinal: len(args) + 1, Value: m[name]})
	}
	return entry.EncodeParams(args)
}

func decodeArgs[M ~map[string]any](s string) (M, error) {
	args, err := entry.DecodeParams(s)
	m := make(M, len(args))
	for _, a := range args {
		m[a.Name] = a.Value
	}
	return m, err
}

// registerBytes registers a type of bytes, and its slices.
func registerBytes[T ~[]byte](name string) {
	registerList[T]()
	registerParam(name, func(v T) (string, error) { return string(v), nil }, func(s string) (T, error) { return T(s), nil })
}

// registerText registers a type with a form as text, and its slices.
func registerText[T encoding.TextMarshaler, P interface {
	*T
	encoding.TextUnmarshaler
}](name string) {
	registerList[T]()
	registerParam(name,
		func(v T) (string, error) {
			text, err := v.MarshalText()
			return string(text), err
		},
		func(s string) (v T, err error) {
			err = P(&v).UnmarshalText([]byte(s))
			return v, err
		})
}
