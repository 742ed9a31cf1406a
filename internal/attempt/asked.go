package attempt

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// asked returns the request that s makes to the database: its text without mere transport, and one
// canonical form of each parameter for all Go types, time zones and modes.
func asked(f sqltext.Flavor, s entry.Statement) (sql string, params []string) {
	sql = sqltext.Asked(f, s.SQL)
	args, err := entry.DecodeParams(s.Params)
	if err != nil {
		return sql, elements(s.Params)
	}
	for _, a := range args {
		if reflect.TypeOf(a.Value) != nil && reflect.TypeOf(a.Value).String() == "pgx.QueryExecMode" {
			continue
		}
		params = append(params, a.Name+"="+form(f, a.Value))
	}
	return sql, params
}

// form writes two values alike if the database receives the same value.
func form(f sqltext.Flavor, v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case time.Time:
		return "time " + v.UTC().Format(time.RFC3339Nano)
	case time.Duration:
		return "duration " + v.String()
	case string:
		return strconv.Quote(v)
	}
	rv := reflect.ValueOf(v)
	switch {
	case rv.Kind() == reflect.Bool && f != sqltext.Postgres:
		return map[bool]string{false: "0", true: "1"}[rv.Bool()]
	case rv.CanInt():
		return strconv.FormatInt(rv.Int(), 10)
	case rv.CanUint():
		return strconv.FormatUint(rv.Uint(), 10)
	case rv.CanFloat():
		if n := rv.Float(); n == math.Trunc(n) || rv.Kind() == reflect.Float64 || strconv.FormatFloat(n, 'g', -1, 32) == strconv.FormatFloat(n, 'g', -1, 64) {
			return "float " + strconv.FormatFloat(n, 'g', -1, 64)
		}
	case rv.Kind() == reflect.Pointer && rv.IsNil():
		return "null"
	case rv.Kind() == reflect.Pointer:
		return form(f, rv.Elem().Interface())
	case rv.Kind() == reflect.Slice && rv.Type().Elem().Kind() == reflect.Uint8:
		// PostgreSQL reads a text for a bytea with escapes, SQLite keeps text and bytes apart.
		if b := rv.Bytes(); f == sqltext.MySQL || f == sqltext.Postgres && utf8.Valid(b) && !bytes.ContainsAny(b, "\x00\\") {
			return strconv.Quote(string(b))
		}
	case rv.Kind() == reflect.Slice:
		list := make([]string, rv.Len())
		for i := range list {
			list[i] = form(f, rv.Index(i).Interface())
		}
		return fmt.Sprint("list ", list)
	case rv.Kind() == reflect.Map:
		args, _ := rv.Convert(reflect.TypeFor[map[string]any]()).Interface().(map[string]any)
		list := []string{"named"}
		for _, name := range slices.Sorted(maps.Keys(args)) {
			list = append(list, strconv.Quote(name)+"="+form(f, args[name]))
		}
		return fmt.Sprint(list)
	case rv.Type().String() == "postgres.document":
		if text, err := json.Marshal(v); err == nil {
			return strconv.Quote(string(text))
		}
	}
	text, _ := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: v}})
	return text
}
