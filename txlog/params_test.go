package txlog_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/txlog"
)

// storable lists values of every kind.
func storable(t testing.TB) []any {
	odd := "a\xffb"
	noon := time.Date(2024, 5, 1, 12, 0, 0, 5, time.UTC)
	return []any{
		nil,
		true,
		false,
		int64(42),
		int64(math.MinInt64),
		int64(1<<53 + 1),
		uint64(math.MaxUint64),
		int(-1),
		int8(-128),
		int16(7),
		int32(7),
		uint(7),
		uint8(255),
		uint16(7),
		uint32(7),
		1.5,
		2.0,
		math.Copysign(0, -1),
		1e300,
		5e-324,
		math.NaN(),
		math.Float64frombits(0x7ff0000000000001),
		math.Inf(1),
		math.Inf(-1),
		float32(0.1),
		float32(math.Inf(-1)),
		float32(math.NaN()),
		"",
		"O'Brien \"日本\" \\ 🚚",
		"a\x00b\n\t\r\x1f\x7f\u2028",
		"\uFFFD",
		odd,
		[]byte(nil),
		[]byte{},
		[]byte(`{"a":1}`),
		[]byte{0, 1, 255},
		noon,
		noon.In(berlin(t)),
		noon.In(time.FixedZone("", -3600)),
		noon.In(time.FixedZone("UTC", 3600)),
		noon.In(time.FixedZone("a \xff", 1)),
		time.Time{},
		time.Date(1890, 1, 1, 0, 0, 0, 0, berlin(t)),
		time.Date(-44, 3, 15, 0, 0, 0, 1, time.UTC),
		time.Date(12024, 3, 15, 0, 0, 0, 0, time.UTC),
		90 * time.Minute,
		time.Duration(math.MinInt64),
		[]string{"a", odd, ""},
		[]string(nil),
		[]string{},
		[]int64{1, math.MaxInt64},
		[]int32{-1},
		[]int16{-1},
		[]int8{-1},
		[]int{1, 2},
		[]uint64{math.MaxUint64},
		[]uint32{1},
		[]uint16{1},
		[]uint{1},
		[]float64{1, math.Inf(1), math.Copysign(0, -1)},
		[]float32{0.1},
		[]bool{true, false},
		[][]byte{nil, {}, []byte("x"), {0}},
		[]time.Time{noon},
		[]time.Duration{1},
	}
}

// same compares as a driver would: bit by bit, and times by all they say.
func same(a, b any) bool {
	if reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	switch x := a.(type) {
	case time.Time:
		y := b.(time.Time)
		nx, ox := x.Zone()
		ny, oy := y.Zone()
		const wall = "2006-01-02T15:04:05.000000000"
		return x.Equal(y) && x.Format(wall) == y.Format(wall) && ox == oy && nx == ny &&
			x.Location().String() == y.Location().String() && !strings.Contains(y.String(), " m=")
	case float64:
		return math.Float64bits(x) == math.Float64bits(b.(float64))
	case float32:
		return math.Float32bits(x) == math.Float32bits(b.(float32))
	case []time.Time, []float64, []float32:
		vx, vy := reflect.ValueOf(a), reflect.ValueOf(b)
		if vx.Len() != vy.Len() || vx.IsNil() != vy.IsNil() {
			return false
		}
		for i := range vx.Len() {
			if !same(vx.Index(i).Interface(), vy.Index(i).Interface()) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}

func roundTrip(t interface{ Fatalf(string, ...any) }, args []driver.NamedValue) string {
	text, err := entry.EncodeParams(args)
	if err != nil {
		t.Fatalf("encode %#v: %v", args, err)
	}
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		t.Fatalf("encode %#v: %q cannot be kept by every database", args, text)
	}
	got, err := entry.DecodeParams(text)
	if err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	if len(got) != len(args) {
		t.Fatalf("decode %s: got %d parameters, want %d", text, len(got), len(args))
	}
	for i := range args {
		if got[i].Name != args[i].Name || got[i].Ordinal != args[i].Ordinal || !same(args[i].Value, got[i].Value) {
			t.Fatalf("decode %s: got %#v, want %#v", text, got[i], args[i])
		}
	}
	return text
}

func TestParametersOfEveryKindComeBackUnchanged(t *testing.T) {
	t.Parallel()
	var all []driver.NamedValue
	for i, v := range storable(t) {
		roundTrip(t, []driver.NamedValue{{Ordinal: 1, Value: v}})
		all = append(all, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	roundTrip(t, all)
}

// storedForms are the files of all stored forms of parameters ever used, the newest last. Add lines
// for a new type there. Never change or remove a line.
var storedForms = []string{"params/1.txt"}

func TestParametersAreReadAsTheyWereEverStored(t *testing.T) {
	t.Parallel()
	for _, file := range storedForms {
		for _, c := range cases.Read(t, file) {
			if got := describe(t, c.In[0]); got != c.Want {
				t.Errorf("%s: %s is read as\n%s\nwant\n%s", c.Place, c.In[0], got, c.Want)
			}
		}
	}
}

func TestParametersAreStoredInTheNewestForm(t *testing.T) {
	t.Parallel()
	var lists [][]driver.NamedValue
	for _, v := range storable(t) {
		lists = append(lists, []driver.NamedValue{{Ordinal: 1, Value: v}})
	}
	lists = append(lists, []driver.NamedValue{
		{Ordinal: 1, Name: "id", Value: int64(7)}, {Ordinal: 5, Value: nil}, {Ordinal: 0, Name: "\x00\xff", Value: []byte("value")},
	})
	file := "# Parameters as they are read, and as the column parameters holds them: of a statement sent as text, or prepared.\n"
	for _, prepared := range []bool{false, true} {
		for _, args := range lists {
			column := txlog.ParamsColumn(roundTrip(t, args), prepared)
			file += cases.Line(describe(t, column), column)
			if prepared {
				break
			}
		}
		column := txlog.ParamsColumn("", prepared)
		file += cases.Line(describe(t, column), column)
	}
	cases.CheckText(t, storedForms[len(storedForms)-1], file)
}

// describe returns the content of the column parameters.
func describe(t *testing.T, column string) string {
	text, prepared := txlog.ReadParamsColumn(column)
	args, err := entry.DecodeParams(text)
	if err != nil {
		t.Fatalf("%s: %v", column, err)
	}
	list := map[bool]string{true: "prepared:", false: "text:"}[prepared]
	for i, a := range args {
		list += " "
		if a.Name != "" {
			list += fmt.Sprintf("%q=", a.Name)
		}
		if a.Ordinal != i+1 {
			list += fmt.Sprintf("%d:", a.Ordinal)
		}
		list += describeValue(a.Value)
	}
	return list
}

func describeValue(v any) string {
	switch x := v.(type) {
	case time.Time:
		return "time.Time(" + x.Format("2006-01-02T15:04:05.999999999-07:00:00 MST") + " in " + x.Location().String() + ")"
	case []time.Time:
		return "[]time.Time(" + describeValue(x[0]) + ")"
	case float64:
		return fmt.Sprintf("float64(%v %x)", x, math.Float64bits(x))
	case float32:
		return fmt.Sprintf("float32(%v %x)", x, math.Float32bits(x))
	case string:
		return fmt.Sprintf("%+q", x)
	}
	return fmt.Sprintf("%T(%#v)", v, v)
}

func TestNoParametersAreTheEmptyText(t *testing.T) {
	t.Parallel()
	for _, args := range [][]driver.NamedValue{nil, {}} {
		if got := roundTrip(t, args); got != "" {
			t.Errorf("got %q", got)
		}
	}
	if got, err := entry.DecodeParams("[]"); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

type secretType struct{ Password string }

func TestUnstorableValueIsNamedButNotShown(t *testing.T) {
	t.Parallel()
	for want, arg := range map[string]driver.NamedValue{
		"2 (txlog_test.secretType)":    {Ordinal: 2, Value: secretType{"hunter2"}},
		"@pw (*txlog_test.secretType)": {Ordinal: 2, Name: "pw", Value: &secretType{"hunter2"}},
		"2 (struct { P string })":      {Ordinal: 2, Value: struct{ P string }{"hunter2"}},
	} {
		_, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: "ok"}, arg})
		var param *txlog.ParamError
		if !errors.As(err, &param) || param.Ordinal != 2 || param.Name != arg.Name {
			t.Fatalf("got %v, want a ParamError", err)
		}
		if text := err.Error(); !strings.Contains(text, "parameter "+want) || strings.Contains(text, "hunter2") {
			t.Errorf("got %q, want it to name parameter %s", text, want)
		}
	}
}

func TestBrokenParametersAreNamedButNotShown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`hunter2`, `["hunter2"`, `{"hunter2":1}`, "[\"hunter2\xff\"]", `null`, `[1] hunter2`, ` `,
		`["a",{"int8":"hunter2"}]`, `["a",{"int8":300}]`, `["a",{"uint64":-1}]`, `["a",{"time":"hunter2"}]`, `["a",{"time":"2024Z hunter2"}]`,
		`["a",{"time":"@1+00:00"}]`, `["a",{"time":"@1.0000000001Z"}]`, `["a",{"time":"2024-01-01T00:00:00+1"}]`,
		`["a",{"hunter2":1}]`, `["a",{}]`, `["a",{"int":1,"uint":1}]`, `["a",["hunter2"]]`, `["a",{"[]byte":{"base64":"hunter2!"}}]`, `["a",{"[]byte":{}}]`,
		`["a",{"[]byte":7}]`, `["a",{"string":null}]`, `["a",{"float64":"hunter2"}]`, `["a",{"float64":"NaN:hunter2"}]`, `["a",{"duration":"hunter2"}]`,
		`["a",{"[]bool":[1]}]`, `["a",{"[]string":"hunter2"}]`, `["a",99999999999999999999]`, `["a",1e999]`, `["a",{"name":7,"value":1}]`, `["a",{"ordinal":"x","value":1}]`,
		`["a",{"time":"2024-01-01T00:00:00+"}]`, `["a",{"time":""}]`, `["a",{"time":7}]`,
	} {
		args, err := entry.DecodeParams(text)
		if err == nil {
			t.Errorf("%s was read as %v", text, args)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") && !strings.Contains(text, `{"hunter2":1}`) {
			t.Errorf("%s: the error shows the value: %v", text, err)
		}
		if strings.HasPrefix(text, `["a",`) && !strings.Contains(err.Error(), "parameter 2") {
			t.Errorf("%s: the error does not name parameter 2: %v", text, err)
		}
	}
}

func anyValue() *rapid.Generator[any] {
	bytes := rapid.SliceOf(rapid.Byte())
	zones := rapid.OneOf(
		rapid.Map(rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Africa/Monrovia"}), func(name string) *time.Location {
			loc, err := time.LoadLocation(name)
			if err != nil {
				panic(err)
			}
			return loc
		}),
		rapid.Custom(func(t *rapid.T) *time.Location {
			name := rapid.OneOf(rapid.SampledFrom([]string{"", "UTC", "Europe/Berlin", "a b"}), rapid.String()).Draw(t, "zone")
			return time.FixedZone(name, rapid.IntRange(-100_000, 100_000).Draw(t, "offset"))
		}))
	times := rapid.Custom(func(t *rapid.T) time.Time {
		sec := rapid.OneOf(rapid.Int64Range(-1<<40, 1<<40), rapid.Int64Range(-4e9, 4e9)).Draw(t, "sec")
		return time.Unix(sec, rapid.Int64Range(0, 999_999_999).Draw(t, "nsec")).In(zones.Draw(t, "zone"))
	})
	floats := rapid.Map(rapid.Uint64(), math.Float64frombits)
	return rapid.OneOf(
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Uint64(), func(v uint64) any { return v }),
		rapid.Map(rapid.Int32(), func(v int32) any { return v }),
		rapid.Map(floats, func(v float64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }),
		rapid.Map(rapid.Uint32(), func(v uint32) any { return math.Float32frombits(v) }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(bytes, func(v []byte) any { return string(v) }),
		rapid.Map(bytes, func(v []byte) any { return v }),
		rapid.Map(times, func(v time.Time) any { return v }),
		rapid.Map(rapid.Int64(), func(v int64) any { return time.Duration(v) }),
		rapid.Map(rapid.SliceOf(rapid.String()), func(v []string) any { return v }),
		rapid.Map(rapid.SliceOf(bytes), func(v [][]byte) any { return v }),
		rapid.Map(rapid.SliceOf(times), func(v []time.Time) any { return v }),
		rapid.Map(rapid.SliceOf(floats), func(v []float64) any { return v }),
		rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Just[any](nil),
	)
}

func TestAnyParametersComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		args := make([]driver.NamedValue, rapid.IntRange(1, 6).Draw(t, "count"))
		for i := range args {
			args[i] = driver.NamedValue{Ordinal: i + 1, Value: anyValue().Draw(t, "value")}
			if rapid.IntRange(0, 4).Draw(t, "named") == 0 {
				args[i].Name = rapid.String().Draw(t, "name")
			}
		}
		roundTrip(t, args)
	})
}

// Readable parameters are unambiguous: writing and reading them again gives the same.
func FuzzDecodeParams(f *testing.F) {
	for _, file := range storedForms {
		for _, c := range cases.Read(f, file) {
			f.Add(c.In[0])
		}
	}
	f.Add(`[{"name":"id","ordinal":3,"value":{"[]string":["a"]}}]`)
	f.Add(`[{"time":"2024-05-01T14:00:00+99:99:99 x"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		args, err := entry.DecodeParams(text)
		if err != nil || len(args) == 0 {
			return
		}
		roundTrip(t, args)
	})
}

func FuzzStringAndBytes(f *testing.F) {
	for _, s := range []string{"", "a", "\x00", "\xff", "日本", `{"base64":"AA=="}`, "\u2028\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		roundTrip(t, []driver.NamedValue{{Ordinal: 1, Value: s}, {Ordinal: 2, Name: s, Value: []byte(s)}, {Ordinal: 3, Value: []string{s}}})
	})
}

func BenchmarkEncodeParams(b *testing.B) {
	args := []driver.NamedValue{
		{Ordinal: 1, Value: int64(42)}, {Ordinal: 2, Value: "a name of usual length"}, {Ordinal: 3, Value: 1.5},
		{Ordinal: 4, Value: []byte("{}")}, {Ordinal: 5, Value: time.Now()}, {Ordinal: 6, Value: nil},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := entry.EncodeParams(args); err != nil {
			b.Fatal(err)
		}
	}
}
