package bedhttp

import (
	"net/http"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/httpkey"
)

// The first cases have the names and outcomes of string.json and item.json in the httpwg's
// structured-field-tests. Keys without quotes differ: they are no strings there, but here they are
// keys as Stripe's clients send them.
func TestKeyIsAStructuredFieldStringOrRaw(t *testing.T) {
	t.Parallel()
	const refused = "\x00"
	for name, c := range map[string]struct{ header, key string }{
		"basic string":           {`"foo"`, "foo"},
		"empty string":           {`""`, refused}, // parsed there, and empty here
		"long string":            {`"` + strings.Repeat("foo ", 63) + `"`, strings.Repeat("foo ", 63)},
		"whitespace string":      {`"   "`, "   "},
		"non-ascii string":       {`"füü"`, refused},
		"tab in string":          {"\"\t\"", refused},
		"newline in string":      {"\" \n \"", refused},
		"unbalanced string":      {`"foo`, refused},
		"string quoting":         {`"foo \"bar\" \\ baz"`, `foo "bar" \ baz`},
		"bad string quoting":     {`"foo \,"`, refused},
		"ending string quote":    {`"foo \"`, refused},
		"abruptly ending string": {`"foo \`, refused},
		"leading space":          {`  "foo"`, "foo"},
		"trailing space":         {`"foo"  `, "foo"},
		"two items":              {`"foo", "bar"`, refused},
		"parameters":             {`"foo";a;b=1;c="x\"y";d=?0;e=:aGk=:;f=tok/en;g=-1.5; h=*t`, "foo"},
		"bad parameter":          {`"foo";A=1`, refused},
		"parameter w/o a key":    {`"foo";`, refused},
		"text after the string":  {`"foo"bar`, refused},

		"single quoted, raw":    {`'foo'`, "'foo'"},
		"raw UUID":              {"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		"quoted UUID":           {`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		"raw number":            {"42", "42"},
		"raw with a quote":      {`a"b\`, `a"b\`},
		"raw with spaces":       {" a key ", "a key"},
		"raw, joined lines":     {"a, b", refused},
		"raw, not ASCII":        {"clé", refused},
		"raw control character": {"a\x7f", refused},
		"raw, empty":            {"  ", refused},
		"255 characters":        {strings.Repeat("k", 255), strings.Repeat("k", 255)},
		"256 characters":        {strings.Repeat("k", 256), refused},
		"255 escaped":           {`"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255)},
		"256 quoted":            {`"` + strings.Repeat(`k`, 256) + `"`, refused},
	} {
		key, given, err := keyOf(http.Header{httpkey.Key: {c.header}}, httpkey.Key)
		if !given || (err != nil) != (c.key == refused) || err == nil && key != c.key {
			t.Errorf("%s: %q is the key %q (%v), given %v", name, c.header, key, err, given)
		}
	}
	// Each character of string-generated.json, in a string, raw and escaped.
	for b := range 256 {
		char := string([]byte{byte(b)})
		in := b >= 0x20 && b <= 0x7e && b != '"' && b != '\\'
		if key, _, err := keyOf(http.Header{httpkey.Key: {`" ` + char + ` "`}}, httpkey.Key); (err == nil) != in || in && key != " "+char+" " {
			t.Errorf("%#x in a string: %q, %v", b, key, err)
		}
		escaped := b == '"' || b == '\\'
		if key, _, err := keyOf(http.Header{httpkey.Key: {`"\` + char + `"`}}, httpkey.Key); (err == nil) != escaped || escaped && key != char {
			t.Errorf("%#x escaped: %q, %v", b, key, err)
		}
		raw := b >= 0x20 && b <= 0x7e && b != ','
		if key, _, err := keyOf(http.Header{httpkey.Key: {"a" + char + "b"}}, httpkey.Key); (err == nil) != raw || raw && key != "a"+char+"b" {
			t.Errorf("%#x in a raw key: %q, %v", b, key, err)
		}
	}
	for _, lines := range [][]string{{"a", "a"}, {`"a"`, `"b"`}, {"", "a"}} {
		if _, given, err := keyOf(http.Header{httpkey.Key: lines}, httpkey.Key); !given || err == nil {
			t.Errorf("%q: %v", lines, err)
		}
	}
	if _, given, err := keyOf(http.Header{}, httpkey.Key); given || err != nil {
		t.Errorf("no header: given %v, %v", given, err)
	}
}

func TestServiceIsPartOfTheScope(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"b", "a", "c"}, {"", "ab", "c"}} {
		seen[scoped(s[0], s[1], s[2])] = true
	}
	if len(seen) != 4 {
		t.Errorf("%v", seen)
	}
}

func TestNoTwoRowsOfTextsHaveOneDigest(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, texts := range [][]string{{"ab", "c"}, {"a", "bc"}, {"abc"}, {"abc", ""}, {"", "abc"}, {"a", "b", "c"}, {"\x00\x01", "a"}, {"", "\x00\x01a"}, {}} {
		rows := make([][]byte, len(texts))
		for i := range texts {
			rows[i] = []byte(texts[i])
		}
		if d := digest(rows...); seen[d] {
			t.Errorf("%q has the digest of another", texts)
		} else {
			seen[d] = true
		}
	}
}

func FuzzKeyIsPrintableOrRefused(f *testing.F) {
	for _, s := range []string{`"a"`, "a", `"a";b=?1`, `"\"`, ","} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, _, err := keyOf(http.Header{httpkey.Key: {header}}, httpkey.Key)
		if err != nil {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, _, err := keyOf(http.Header{httpkey.Key: {quoted}}, httpkey.Key); err != nil || again != key || key == "" || len(key) > maxKey {
			t.Errorf("%q is %q, and that quoted is %q, %v", header, key, again, err)
		}
	})
}

func TestEachOutcomeHasAStatus(t *testing.T) {
	t.Parallel()
	for o, status := range []int{200, 202, 409, 503, 207, 409, 500, 500} {
		if got := StatusOf(bedsql.Outcome(o)); got != status {
			t.Errorf("%v: %d, want %d", bedsql.Outcome(o), got, status)
		}
	}
}
