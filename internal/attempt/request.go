package attempt

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// A fingerprint in an entry consists of a letter for its origin, the request's digest, and the
// secret of the digests. A receipt keeps all but the secret, so a reader of bed_receipt cannot
// find out a request's values by trial.
const (
	byStatements = "s"
	byCaller     = "c" // SetFingerprint's

	digestSize = 32 // characters
	storedSize = 1 + digestSize
	partSize   = 3 // characters of the digest of a statement's SQL and of each parameter
)

// A Request is the identity of a request under a caller's key: equal requests have equal
// fingerprints.
type Request struct {
	by, secret string
	parts      []string
}

// NewRequest begins a request under key; own is the argument of SetFingerprint.
func NewRequest(key, own string) *Request {
	r := &Request{by: byStatements, secret: digest(key, "secret")}
	if own != "" {
		r.by, r.parts = byCaller, []string{own}
	}
	r.secret = r.secret[:24]
	return r
}

// Prints are the two fingerprints of a statement: of its text and parameters as they stand, and of
// the request that it makes to the database. Two statements are the same if either one agrees. The
// answer keeps them, so that the refusal of another request can name the difference. Versions
// before the second fingerprint compare by the first.
type Prints struct {
	Fingerprint string `json:"fingerprint,omitempty"`
	Asked       string `json:"asked,omitempty"`
}

// Add adds a statement to the request.
func (r *Request) Add(s entry.Statement) {
	if r.by != byCaller {
		r.parts = append(r.parts, fingerprint(r.secret, s))
	}
}

// Answered adds a statement and returns its prints. They are empty if the caller's own fingerprint
// decides.
func (r *Request) Answered(f sqltext.Flavor, s entry.Statement) (p Prints) {
	if r.by == byCaller {
		return p
	}
	p = prints(f, r.secret, s)
	r.parts = append(r.parts, p.Fingerprint)
	return p
}

// Fingerprint is the unit's.
func (r *Request) Fingerprint() string { return r.by + digest(r.secret, r.parts...) + r.secret }

// printsIn are those of s in the answer to u.
func printsIn(f sqltext.Flavor, u *entry.Unit, s entry.Statement) Prints {
	if len(u.Fingerprint) <= storedSize || !strings.HasPrefix(u.Fingerprint, byStatements) {
		return Prints{}
	}
	return prints(f, u.Fingerprint[storedSize:], s)
}

// storedFingerprint is the part of u's fingerprint that a receipt keeps.
func storedFingerprint(u *entry.Unit) string {
	return u.Fingerprint[:min(len(u.Fingerprint), storedSize)]
}

// fingerprint is the print of a statement as it stands.
func fingerprint(secret string, s entry.Statement) string {
	return printOf(secret, s, []string{s.SQL, s.Params}, s.SQL, elements(s.Params))
}

func prints(f sqltext.Flavor, secret string, s entry.Statement) Prints {
	sql, params := asked(f, s)
	return Prints{fingerprint(secret, s), printOf(secret, s, append([]string{sql}, params...), sql, params)}
}

// printOf returns the digest of the whole statement, followed by short digests of its SQL and of
// each parameter.
func printOf(secret string, s entry.Statement, whole []string, sql string, params []string) string {
	var b strings.Builder
	if s.Required.Given() {
		whole = append(whole, s.Required.Sign())
	}
	b.WriteString(digest(secret, whole...))
	b.WriteString(digest(secret, "SQL", sql)[:partSize])
	for i, p := range params {
		b.WriteString(digest(secret, strconv.Itoa(i), p)[:partSize])
	}
	return b.String()
}

// elements are the parameters as the log writes them.
func elements(params string) []string {
	var raw []json.RawMessage
	if params == "" || json.Unmarshal([]byte(params), &raw) != nil {
		return nil
	}
	texts := make([]string, len(raw))
	for i := range raw {
		texts[i] = string(raw[i])
	}
	return texts
}

// digest is the same for no two rows of texts.
func digest(secret string, texts ...string) string {
	h := hmac.New(sha256.New, []byte(secret))
	for _, text := range texts {
		_ = binary.Write(h, binary.BigEndian, int64(len(text)))
		_, _ = h.Write([]byte(text))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))[:digestSize]
}

// Of reports whether the receipt belongs to u's request.
func (f *Found) Of(u *entry.Unit) bool {
	return f.Fingerprint == storedFingerprint(u) || strings.HasPrefix(f.Fingerprint, byStatements) && f.differs(u) == nil
}

// OfAnother returns an error if the receipt belongs to another request than u. It compares only
// the callers' own fingerprints.
func (f *Found) OfAnother(u *entry.Unit) error {
	then, now := strings.HasPrefix(f.Fingerprint, byCaller), strings.HasPrefix(u.Fingerprint, byCaller)
	switch {
	case then && now && !f.Of(u):
		return reused("its own fingerprint (SetFingerprint) differs")
	case then && !now:
		return reused("that one had a fingerprint of its own (SetFingerprint), this one has none")
	case now && !then:
		return reused("this one has a fingerprint of its own (SetFingerprint), that one had none")
	default:
		return nil
	}
}

// reused returns the error of u if its request differs from the receipt's request.
func (f *Found) reused(u *entry.Unit) error {
	if err := f.OfAnother(u); err != nil {
		return err
	}
	return f.differs(u)
}

// differs returns the error of u if one of its statements differs from the answered ones.
func (f *Found) differs(u *entry.Unit) error {
	answer, err := ReadAnswer(f.Result)
	if err != nil {
		return dialect.ErrKeyReused
	}
	for i, s := range u.Statements {
		if i == len(answer.Statements) {
			break
		}
		if err := answer.Statements[i].Differs(i+1, s, printsIn(f.flavor, u, s)); err != nil {
			return err
		}
	}
	if len(u.Statements) == len(answer.Statements) && len(u.Statements) > 0 {
		return nil
	}
	return ReusedCount(len(u.Statements), len(answer.Statements))
}

// ReusedCount returns the error of a request with another number of statements.
func ReusedCount(now, then int) error {
	return reused("it has " + count(now, "statement") + " now, and had " + strconv.Itoa(then))
}

// Differs returns an error if statement n of a request, s with prints p, differs from the answered
// statement. An answer of an earlier version has no Asked.
func (a *AnswerStatement) Differs(n int, s entry.Statement, p Prints) error {
	then, now := a.Fingerprint, p.Fingerprint
	if a.Asked != "" && p.Asked != "" && then != now {
		then, now = a.Asked, p.Asked
	}
	switch {
	case then == now:
		return nil
	case len(then) < digestSize+partSize || len(now) < digestSize+partSize:
		return reused("its statement %d differs", n)
	}
	then, now = then[digestSize:], now[digestSize:]
	switch {
	case then[:partSize] != now[:partSize]:
		return reused("the SQL of its statement %d differs", n)
	case len(then) != len(now):
		return reused("its statement %d has %s now, and had %d", n, count(len(now)/partSize-1, "parameter"), len(then)/partSize-1)
	}
	names, _ := entry.DecodeParams(s.Params)
	for at := partSize; at < len(now); at += partSize {
		if then[at:at+partSize] == now[at:at+partSize] {
			continue
		}
		which := strconv.Itoa(at / partSize)
		if i := at/partSize - 1; i < len(names) && names[i].Name != "" {
			which = "@" + names[i].Name
		}
		return reused("parameter %s of its statement %d differs", which, n)
	}
	return reused("how many rows its statement %d must change, or a parameter, differs", n)
}

func reused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{dialect.ErrKeyReused}, args...)...)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

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
