package entry

import (
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// ParamError names the parameter that the log cannot keep or read back. Its text never holds
// the parameter's value.
type ParamError struct {
	// Name is the parameter's name (sql.Named); empty if it has no name.
	Name string
	// Ordinal is its position among the statement's parameters, from 1.
	Ordinal int
	// Type is its Go type; empty if unknown.
	Type string
	// Err is the reason.
	Err error
}

// Error implements error.
func (e *ParamError) Error() string {
	which := strconv.Itoa(e.Ordinal)
	if e.Name != "" {
		which = "@" + e.Name
	}
	if e.Type != "" {
		which += " (" + e.Type + ")"
	}
	return "txlog: parameter " + which + " " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *ParamError) Unwrap() error { return e.Err }

var errNotStorable = errors.New("cannot be kept in the transaction log: " +
	"pass one of the types that the log keeps, or a driver.Valuer that gives one")

// EncodeParams writes a statement's parameters as one line of typed JSON, which people can
// read. [DecodeParams] restores exactly the same values:
//
//	[42, 1.5, true, null, "text", {"uint64":7}, {"[]byte":"text"},
//	 {"time":"2024-05-01T10:00:00+02:00 Europe/Berlin"}, {"name":"id","value":1}]
//
// A bare number is an int64; with a point or an exponent it is a float64. Bytes other than
// printable text are {"base64":"…"}. Without parameters the result is the empty string. The
// result is always valid UTF-8 without NUL.
//
// It keeps nil, bool, string, []byte, all widths of int, uint and float, time.Time (without
// its monotonic part), time.Duration, slices of these, and the types of [RegisterParamType].
// For any other type it returns a [*ParamError]. It is safe for concurrent use.
func EncodeParams(args []driver.NamedValue) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	var stack [512]byte
	b := append(stack[:0], '[')
	for i := range args {
		a := &args[i]
		if i > 0 {
			b = append(b, ',')
		}
		bare := a.Name == "" && a.Ordinal == i+1
		if !bare {
			b = append(b, '{')
			if a.Name != "" {
				b = appendText(append(b, `"name":`...), a.Name)
				b = append(b, ',')
			}
			if a.Ordinal != i+1 {
				b = strconv.AppendInt(append(b, `"ordinal":`...), int64(a.Ordinal), 10)
				b = append(b, ',')
			}
			b = append(b, `"value":`...)
		}
		var err error
		if b, err = appendValue(b, a.Value); err != nil {
			which := a.Ordinal
			if which <= 0 {
				which = i + 1
			}
			return "", &ParamError{Name: a.Name, Ordinal: which, Type: fmt.Sprintf("%T", a.Value), Err: err}
		}
		if !bare {
			b = append(b, '}')
		}
	}
	return string(append(b, ']')), nil
}

// appendValue appends v: bare if its form implies its type, else under the type's name. The
// types that every driver accepts cost no allocation.
func appendValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return appendFloat64(b, v), nil
		}
	case string:
		if utf8.ValidString(v) {
			return AppendQuoted(b, v), nil
		}
	case []byte:
		return append(appendBytes(append(b, `{"[]byte":`...), v), '}'), nil
	case time.Time:
		return append(appendTime(append(b, `{"time":`...), v), '}'), nil
	}
	known, ok := paramTypes.Load(reflect.TypeOf(v))
	if !ok {
		return b, errNotStorable
	}
	p := known.(*paramType)
	value, err := p.encode(v) // does not get b, which would make it escape
	b = append(append(append(b, '{', '"'), p.name...), '"', ':')
	return append(append(b, value...), '}'), err
}

func appendSlice[T any](appendT func([]byte, T) []byte) func([]byte, []T) []byte {
	return func(b []byte, s []T) []byte {
		if s == nil {
			return append(b, "null"...)
		}
		b = append(b, '[')
		for i, v := range s {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendT(b, v)
		}
		return append(b, ']')
	}
}

func AppendInt[T int | int8 | int16 | int32 | int64](b []byte, v T) []byte {
	return strconv.AppendInt(b, int64(v), 10)
}

func appendUint[T uint | uint8 | uint16 | uint32 | uint64](b []byte, v T) []byte {
	return strconv.AppendUint(b, uint64(v), 10)
}

func appendFloat64(b []byte, v float64) []byte {
	return appendFloat(b, v, 64, math.Float64bits(v), math.Float64bits(math.NaN()))
}

func appendFloat32(b []byte, v float32) []byte {
	return appendFloat(b, float64(v), 32, uint64(math.Float32bits(v)), uint64(math.Float32bits(float32(math.NaN()))))
}

// appendFloat always writes a point or an exponent, so that a float64 never looks like an
// int64. It writes the usual NaN, Go's own, as "NaN", others with their pattern.
func appendFloat(b []byte, v float64, bits int, pattern, usual uint64) []byte {
	switch abs := math.Abs(v); {
	case math.IsNaN(v) && pattern != usual:
		b = strconv.AppendUint(append(b, `"NaN:`...), pattern, 16)
		return append(b, '"')
	case math.IsNaN(v), math.IsInf(v, 0):
		b = strconv.AppendFloat(append(b, '"'), v, 'g', -1, bits)
		return append(b, '"')
	case abs != 0 && (abs < 1e-6 || abs >= 1e21):
		return strconv.AppendFloat(b, v, 'e', -1, bits)
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, bits)
	if slices.Contains(b[from:], '.') {
		return b
	}
	return append(b, '.', '0')
}

// appendText appends a string of arbitrary bytes.
func appendText(b []byte, s string) []byte {
	if utf8.ValidString(s) {
		return AppendQuoted(b, s)
	}
	return appendBase64(b, []byte(s))
}

// appendBytes appends bytes: printable ones (a JSON document, a decimal number) as text,
// others in base64; nil as null.
func appendBytes(b []byte, s []byte) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	if printable(s) {
		return AppendQuoted(b, s)
	}
	return appendBase64(b, s)
}

func appendBase64(b, s []byte) []byte {
	b = append(b, `{"base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, s)
	return append(b, '"', '}')
}

func printable(s []byte) bool {
	for _, c := range s {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
	}
	return utf8.Valid(s)
}

// AppendQuoted appends valid UTF-8 as a JSON string.
func AppendQuoted[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexChars[c>>4], hexChars[c&15])
		}
	}
	return append(append(b, s[start:]...), '"')
}

// paramType is a parameter type that the log keeps as {"name":…}.
type paramType struct {
	name   string
	goType reflect.Type
	encode func(any) ([]byte, error)
	decode func(json.RawMessage) (any, error)
}

// paramNames holds the types by name, paramTypes by Go type.
var paramNames, paramTypes sync.Map

func init() {
	keep("bool", strconv.AppendBool, decodeAs[bool])
	keep("string", appendText, decodeText)
	keep("[]byte", appendBytes, decodeBytes)
	keep("time", appendTime, decodeBy(parseTime))
	keep("duration", func(b []byte, v time.Duration) []byte { return strconv.AppendQuote(b, v.String()) }, decodeBy(time.ParseDuration))
	keep("float64", appendFloat64, decodeFloat64)
	keep("float32", appendFloat32, decodeFloat32)
	keep("int", AppendInt[int], decodeAs[int])
	keep("int8", AppendInt[int8], decodeAs[int8])
	keep("int16", AppendInt[int16], decodeAs[int16])
	keep("int32", AppendInt[int32], decodeAs[int32])
	keep("int64", AppendInt[int64], decodeAs[int64])
	keep("uint", appendUint[uint], decodeAs[uint])
	keepOne("uint8", appendUint[uint8], decodeAs[uint8]) // a []uint8 is a []byte
	keep("uint16", appendUint[uint16], decodeAs[uint16])
	keep("uint32", appendUint[uint32], decodeAs[uint32])
	keep("uint64", appendUint[uint64], decodeAs[uint64])
}

// keep registers a type and its slices.
func keep[T any](name string, appendT func([]byte, T) []byte, decode func(json.RawMessage) (T, error)) {
	keepOne(name, appendT, decode)
	keepOne("[]"+name, appendSlice(appendT), decodeSlice(decode))
}

func keepOne[T any](name string, appendT func([]byte, T) []byte, decode func(json.RawMessage) (T, error)) {
	addParamType(&paramType{name, reflect.TypeFor[T](),
		func(v any) ([]byte, error) { return appendT(nil, v.(T)), nil },
		func(raw json.RawMessage) (any, error) { return decode(raw) }})
}

// addParamType panics if the name is taken or the type already registered.
func addParamType(p *paramType) {
	_, taken := paramNames.Load(p.name)
	if _, known := paramTypes.Load(p.goType); taken || known {
		panic("txlog: RegisterParamType " + p.name + ": the name is taken, or " + p.goType.String() + " is known already")
	}
	paramNames.Store(p.name, p)
	paramTypes.Store(p.goType, p)
}

// RegisterParamType is txlog.RegisterParamType.
func RegisterParamType(name string, sample any, encode func(any) (string, error), decode func(string) (any, error)) {
	t := reflect.TypeOf(sample)
	if t == nil || encode == nil || decode == nil {
		panic("txlog: RegisterParamType " + name + ": the sample or a function is nil")
	}
	if !plainName(name) {
		panic("txlog: RegisterParamType: the name is not plain text")
	}
	addParamType(&paramType{name, t, func(v any) ([]byte, error) {
		text, err := encode(v)
		if err != nil {
			return nil, fmt.Errorf("cannot be kept in the transaction log: %w", err)
		}
		return appendText(nil, text), nil
	}, func(raw json.RawMessage) (any, error) {
		text, err := decodeText(raw)
		if err != nil {
			return nil, err
		}
		v, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("is not a %s", t) // what decode says quotes the value
		}
		if reflect.TypeOf(v) != t {
			return nil, fmt.Errorf("was read as %T instead of %s", v, t)
		}
		return v, nil
	}})
}

// plainName reports whether name needs no escaping in JSON and is not one of the log's own
// words.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return name != "" && name != "value" && name != "name" && name != "ordinal" && name != "base64"
}

// A time is kept as its wall clock, its offset and the name of its location:
//
//	"2024-05-01T10:00:00.5+02:00 Europe/Berlin"
//	"2024-05-01T10:00:00Z"                       UTC
//	"2024-05-01T10:00:00+02:00 Local CEST"       the writer's own zone, with its abbreviation
//	"2024-05-01T10:00:00+02:00"                  a zone without a name
//	"@-99999999999.000000001Z"                   a year that has not four digits
const wallClock = "2006-01-02T15:04:05.999999999"

// local is the name of the machine's own zone in Go.
const local = "Local"

func appendTime(b []byte, t time.Time) []byte {
	from := len(b)
	b = append(b, '"')
	if y := t.Year(); y >= 0 && y <= 9999 {
		b = t.AppendFormat(b, wallClock)
	} else {
		b = fmt.Appendf(b, "@%d.%09d", t.Unix(), t.Nanosecond())
	}
	if t.Location() == time.UTC {
		return append(b, 'Z', '"')
	}
	_, offset := t.Zone()
	sign := '+'
	if offset < 0 {
		sign, offset = '-', -offset
	}
	b = fmt.Appendf(b, "%c%02d:%02d", sign, offset/3600, offset/60%60)
	if s := offset % 60; s != 0 {
		b = fmt.Appendf(b, ":%02d", s)
	}
	name := t.Location().String()
	if name == local {
		short, _ := t.Zone()
		name += " " + short
	}
	if name == "" {
		return append(b, '"')
	}
	// The application chooses the name of a fixed zone: it may hold any bytes.
	text := string(b[from+1:]) + " " + name
	return appendText(b[:from], text)
}

func parseTime(s string) (t time.Time, err error) {
	text, name, named := strings.Cut(s, " ")
	wall, offset, utc, err := cutOffset(text)
	if err != nil {
		return t, err
	}
	if unix, ok := strings.CutPrefix(wall, "@"); ok {
		secs, nanos, _ := strings.Cut(unix, ".")
		sec, serr := strconv.ParseInt(secs, 10, 64)
		nsec, nerr := strconv.ParseUint(nanos, 10, 30)
		if serr != nil || nerr != nil || len(nanos) != 9 {
			return t, errForm
		}
		t = time.Unix(sec, int64(nsec))
	} else {
		if t, err = time.Parse(wallClock, wall); err != nil {
			return t, err
		}
		t = t.Add(-time.Duration(offset) * time.Second)
	}
	if utc {
		return t.UTC(), nil
	}
	return t.In(location(t, name, named, offset)), nil
}

// cutOffset splits the offset off the end of s.
func cutOffset(s string) (rest string, offset int, utc bool, err error) {
	if rest, utc = strings.CutSuffix(s, "Z"); utc {
		return rest, 0, true, nil
	}
	// A sign within the date, or of a negative @time, comes earlier.
	i := strings.LastIndexAny(s, "+-")
	if i < 1 {
		return "", 0, false, errForm
	}
	parts := strings.Split(s[i+1:], ":")
	if len(parts) < 2 || len(parts) > 3 {
		return "", 0, false, errForm
	}
	for n, unit := 0, 3600; n < len(parts); n, unit = n+1, unit/60 {
		v, err := strconv.ParseUint(parts[n], 10, 31)
		if err != nil {
			return "", 0, false, errForm
		}
		offset += int(v) * unit
	}
	if s[i] == '-' {
		offset = -offset
	}
	return s[:i], offset, false, nil
}

// location returns the location called name if its offset at t is still offset. The zone's
// rules may have changed since, or may differ on this machine, and an abbreviation may also
// name a zone that has another offset by now (MET). Earlier versions wrote "Local" without
// an abbreviation.
func location(t time.Time, name string, named bool, offset int) *time.Location {
	if first, rest, _ := strings.Cut(name, " "); named && first == local {
		short, o := t.Local().Zone()
		if o == offset && (rest == short || rest == "") {
			return time.Local
		}
		name = rest
	} else if named {
		if loc := loadLocation(name); loc != nil {
			short, o := t.In(loc).Zone()
			if o == offset && (short == name || len(name) > 4 || strings.ToUpper(name) != name) {
				return loc
			}
		}
	}
	return time.FixedZone(name, offset)
}

// locations caches zones of the system's database, because loading one reads a file. It does
// not hold unknown names.
var locations sync.Map

func loadLocation(name string) *time.Location {
	if loc, ok := locations.Load(name); ok {
		return loc.(*time.Location)
	}
	loc, err := time.LoadLocation(name)
	if err != nil || name == "" {
		return nil
	}
	locations.Store(name, loc)
	return loc
}

var (
	errForm        = errors.New("has not the form that the log writes")
	errNotParams   = errors.New("txlog: the parameters are not what EncodeParams wrote (a JSON array)")
	errUnknownType = errors.New("is of a type that this program does not know: " +
		"import the package of its database (bedsql/mysql, bedsql/postgres or bedsql/sqlite)")
)

// DecodeParams reads the output of [EncodeParams]. The values have their original Go types
// and contents. The empty string means no parameters. An error about one parameter is a
// [*ParamError]. It is safe for concurrent use.
func DecodeParams(s string) ([]driver.NamedValue, error) {
	if s == "" {
		return nil, nil
	}
	var raws []json.RawMessage
	if s[0] != '[' || !utf8.ValidString(s) || json.Unmarshal([]byte(s), &raws) != nil {
		return nil, errNotParams
	}
	args := make([]driver.NamedValue, len(raws))
	for i, raw := range raws {
		args[i].Ordinal = i + 1
		if typ, err := decodeParam(raw, &args[i]); err != nil {
			return nil, &ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: typ, Err: fmt.Errorf("cannot be read from the log: it %w", err)}
		}
	}
	return args, nil
}

// decodeParam reads one element of the array: a value, or a value with its name or ordinal.
func decodeParam(raw json.RawMessage, a *driver.NamedValue) (typ string, err error) {
	if raw[0] == '{' {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return "", errForm
		}
		if value, ok := fields["value"]; ok {
			if name, ok := fields["name"]; ok {
				if a.Name, err = decodeText(name); err != nil {
					return "", err
				}
			}
			if ordinal, ok := fields["ordinal"]; ok {
				n, err := strconv.Atoi(string(ordinal))
				if err != nil {
					return "", errForm
				}
				a.Ordinal = n
			}
			raw = value
		}
	}
	a.Value, typ, err = decodeValue(raw)
	return typ, err
}

func decodeValue(raw json.RawMessage) (v any, typ string, err error) {
	switch raw[0] {
	case 'n':
		return nil, "", nil
	case '[':
		return nil, "", errForm
	case 't', 'f':
		typ = "bool"
	case '"':
		typ = "string"
	case '{':
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || len(fields) != 1 {
			return nil, "", errForm
		}
		for typ, raw = range fields { //nolint:revive // the only one
		}
	default:
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil { // the usual case, quickly
			return n, "int64", nil
		}
		if typ = "int64"; strings.ContainsAny(string(raw), ".eE") {
			typ = "float64"
		}
	}
	p, ok := paramNames.Load(typ)
	if !ok {
		return nil, typ, errUnknownType
	}
	v, err = p.(*paramType).decode(raw)
	return v, typ, err
}

func decodeSlice[T any](decode func(json.RawMessage) (T, error)) func(json.RawMessage) ([]T, error) {
	return func(raw json.RawMessage) ([]T, error) {
		if string(raw) == "null" {
			return nil, nil
		}
		var raws []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &raws) != nil {
			return nil, errForm
		}
		s := make([]T, len(raws))
		for i := range raws {
			var err error
			if s[i], err = decode(raws[i]); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
}

// decodeAs reads the types with a JSON form of their own.
func decodeAs[T bool | int | int8 | int16 | int32 | int64 | uint | uint8 | uint16 | uint32 | uint64](raw json.RawMessage) (v T, err error) {
	if raw[0] == 'n' || json.Unmarshal(raw, &v) != nil {
		return *new(T), errForm
	}
	return v, nil
}

func decodeFloat64(raw json.RawMessage) (float64, error) {
	f, nan, err := decodeFloat(raw, 64)
	if nan != 0 {
		f = math.Float64frombits(nan)
	}
	return f, err
}

func decodeFloat32(raw json.RawMessage) (float32, error) {
	f, nan, err := decodeFloat(raw, 32)
	if nan != 0 {
		return math.Float32frombits(uint32(nan)), err
	}
	return float32(f), err
}

// decodeFloat returns a number, or the bits of a NaN from outside Go.
func decodeFloat(raw json.RawMessage, bits int) (f float64, nan uint64, err error) {
	text := string(raw)
	if raw[0] == '"' {
		if text, err = decodeText(raw); err != nil {
			return 0, 0, err
		}
		if hex, odd := strings.CutPrefix(text, "NaN:"); odd {
			if nan, err = strconv.ParseUint(hex, 16, bits); err != nil || nan == 0 {
				return 0, 0, errForm
			}
			return 0, nan, nil
		}
	}
	if f, err = strconv.ParseFloat(text, bits); err != nil {
		return 0, 0, errForm
	}
	return f, 0, nil
}

func decodeText(raw json.RawMessage) (string, error) {
	if raw[0] == '{' {
		var odd struct{ Base64 *string }
		if json.Unmarshal(raw, &odd) != nil || odd.Base64 == nil {
			return "", errForm
		}
		b, err := base64.StdEncoding.DecodeString(*odd.Base64)
		if err != nil {
			return "", errForm
		}
		return string(b), nil
	}
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", errForm
	}
	return s, nil
}

func decodeBytes(raw json.RawMessage) ([]byte, error) {
	if raw[0] == 'n' {
		return nil, nil
	}
	s, err := decodeText(raw)
	if err != nil {
		return nil, err
	}
	return []byte(s), nil
}

// decodeBy reads a text by parse. It drops parse's error, which may quote the value.
func decodeBy[T any](parse func(string) (T, error)) func(json.RawMessage) (T, error) {
	return func(raw json.RawMessage) (v T, err error) {
		s, err := decodeText(raw)
		if err != nil {
			return v, err
		}
		if v, err = parse(s); err != nil {
			return v, errForm
		}
		return v, nil
	}
}
