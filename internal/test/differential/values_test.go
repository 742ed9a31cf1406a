package differential

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	mysql    = "mysql"
	postgres = "postgres"
	sqlite   = "sqlite"
)

var (
	berlin   = mustLoad("Europe/Berlin")
	newYork  = mustLoad("America/New_York")
	halfHour = time.FixedZone("", 5*3600+1800)
)

func mustLoad(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return loc
}

// classes are kinds of values: most fit their column, and others are at its limits or beyond.
var classes = map[string][]any{
	"id":    {int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), int64(7), int64(8)},
	"small": {int64(0), int64(1), int64(-1), int64(5), int64(42), int64(100), int64(127), int64(13)},
	"int": {int64(0), int64(1), int64(-1), int64(13), int64(42), int64(127), int64(128), int64(255), int64(256), int64(32767),
		int64(math.MaxInt32), int64(math.MaxInt32 + 1), int64(math.MaxInt64), int64(math.MinInt64), "42", 7, nil},
	"uint":    {int64(0), int64(1), int64(255), int64(-1), uint64(math.MaxUint32), uint64(math.MaxInt64), nil},
	"uint64":  {int64(0), uint64(1 << 53), uint64(math.MaxInt64), uint64(math.MaxInt64 + 1), uint64(math.MaxUint64)},
	"decimal": {"1.5", "-0.000001", "12345678901234.123456", "99999999999999999999", 0.1, int64(7), "0.30000000000000004", nil},
	"float":   {0.0, math.Copysign(0, -1), 1.5, 0.1, 1e300, 5e-324, -math.MaxFloat64, float64(math.MaxFloat32), 1.0 / 3, int64(3), nil},
	"odd":     {math.NaN(), math.Inf(1), math.Inf(-1)},
	"bool":    {true, false, nil, int64(1), int64(0)},
	"text": {"", "plain", "Grüße", "grüße", "日本語", "😀", "a'b", `a\b`, `a\'b`, `a"b`, "%_", "pad ", "1", "NULL", "two\nlines", "tab\t",
		"-- no comment", "; DELETE FROM parent", "?", "$1", strings.Repeat("long", 8), nil},
	"rawtext": {"nul\x00byte", "\xff\xfe", []byte("Grüße"), []byte("plain"), []byte{0xe4}},
	"bytes":   {[]byte{}, []byte{0, 1, 255}, []byte("Grüße"), []byte("plain"), []byte(`back\slash'quote`), []byte(nil), "text", nil},
	"json":    {`{"a": 1}`, `[1, 2, {"b": null}]`, `"text"`, `12345678901234567890`, `null`, `not json`, []byte(`{"b": "ü"}`), `{"z": 1, "a": 2}`, nil},
	"enum":    {"red", "green", "blau", "RED", "nothing", "", int64(2), nil},
	"time": {
		time.Date(2020, 2, 29, 12, 34, 56, 123456789, time.UTC), time.Date(2021, 7, 1, 0, 0, 0, 0, berlin),
		time.Date(2021, 3, 28, 2, 30, 0, 0, berlin), time.Date(1999, 12, 31, 23, 59, 59, 999999500, newYork),
		time.Date(2038, 1, 19, 3, 14, 7, 0, halfHour), time.Date(1970, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"2020-02-29 12:34:56.5", "2022-01-02", nil,
	},
	"date":  {"2020-02-29", "1000-01-01", "9999-12-31", "2021-02-30", "02/03/2021", time.Date(2020, 2, 29, 0, 0, 0, 0, time.UTC), nil},
	"array": {"{}", "{1,2,3}", "{1,NULL}", []int64{4, 5}, []int64{}, "{{1},{2}}", "no array", nil},
	"texts": {"{}", `{"a b",c}`, []string{"x", "y'z", `q"`}, []string{}, nil},
}

// value is one of a class, and now and then of any.
func (g *generator) value(class string) any {
	from, ok := classes[class]
	if !ok {
		panic("differential: no class of values " + class)
	}
	if class != "id" && class != "small" && g.IntN(25) == 0 {
		from = classes[pick(g, "int", "text", "bytes", "float", "time", "bool", "uint64", "odd", "rawtext")]
	}
	return pick(g, from...)
}

// literal is a value as written into the SQL; not all can be.
func literal(driver string, v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "NULL", true
	case int64, int:
		return fmt.Sprint(v), true
	case bool:
		return fmt.Sprint(v), true
	case string:
		// For PostgreSQL a NUL ends the text, and the rest is garbage.
		return "'" + strings.ReplaceAll(v, "'", "''") + "'", !strings.Contains(v, "\x00")
	case []byte:
		switch {
		case driver == postgres:
			return fmt.Sprintf(`'\x%x'`, v), true
		case len(v) > 0:
			return fmt.Sprintf("X'%x'", v), true
		}
	}
	return "", false
}
