package console

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
)

// Limits of what is taken from a request.
const (
	maxText      = 1000
	maxName      = 255
	maxReason    = 1000
	maxPerSecond = 1_000_000
	apiPage      = 100
	htmlPage     = 50
)

// filterNames are those of a filter, in a query and in JSON alike.
var filterNames = []string{"dataSource", "state", "text", "transaction", "olderThan", "kind"}

// filterOf reads a filter by a function that gives its fields.
func filterOf(field func(name string) string, p person) (ops.Filter, error) {
	f := ops.Filter{
		DataSource: field("dataSource"), State: ops.State(field("state")), Text: field("text"),
		Transaction: strings.TrimSpace(field("transaction")), Kind: field("kind"), Reveal: p.role >= Reveal,
	}
	for _, v := range []struct {
		text string
		most int
	}{{f.DataSource, maxName}, {f.Text, maxText}, {f.Transaction, maxName}, {f.Kind, maxText}} {
		if len(v.text) > v.most || !utf8.ValidString(v.text) || strings.ContainsRune(v.text, 0) {
			return f, badRequest("The filter is not valid:", "a text of it is too long or no text")
		}
	}
	if strings.ContainsFunc(f.Transaction, notOfID) {
		return f, badRequest("The filter is not valid:", "transaction is the id of one")
	}
	switch f.State {
	case "", ops.Waiting, ops.Leased, ops.Parked:
	default:
		return f, badRequest("The filter is not valid:", "state is waiting, leased or parked")
	}
	var err error
	f.OlderThan, err = duration(field("olderThan"))
	return f, err
}

// duration reads 90s, 5m, 36h or 7d; a number alone is seconds.
func duration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		unit := uint64(time.Second)
		if strings.HasSuffix(text, "d") {
			unit *= 24 * 60 * 60
		}
		return time.Duration(min(n, math.MaxInt64/unit) * unit), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, badRequest("The filter is not valid:", "olderThan is a time such as 90s, 5m, 36h or 7d")
	}
	return d, nil
}

// queryOf checks that a query holds nothing but what is known: a filter that is
// misspelt would match everything.
func queryOf(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("The address cannot be read.", "")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, badRequest("The address has a parameter that is not known:", strconv.QuoteToASCII(short(name, 60))+"; it knows "+strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return nil, badRequest("The address has a parameter twice:", name)
		}
	}
	return q, nil
}

func short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// pageOf reads where a page begins and how long it is; a limit above the highest
// is the highest.
func pageOf(q url.Values, usual int) (ops.Page, error) {
	p := ops.Page{After: q.Get("after"), Limit: usual}
	if len(p.After) > maxName || strings.ContainsFunc(p.After, notOfID) {
		return p, badRequest("after is the next of the page before.", "")
	}
	text := q.Get("limit")
	if text == "" {
		return p, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n == 0 {
		return p, badRequest("limit is a number from 1 to 1000.", "")
	}
	p.Limit = int(min(n, ops.MaxPage))
	return p, nil
}

// notOfID reports whether r cannot stand in an id; the log's database would refuse to compare
// it with one.
func notOfID(r rune) bool { return r <= ' ' || r > '~' }

// idOf is the entry that the path names.
func idOf(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if len(id) > 60 || strings.ContainsFunc(id, notOfID) {
		return "", ops.ErrNotFound
	}
	return id, nil
}

// sourceOf is the data source that the path names.
func sourceOf(r *http.Request) (string, error) {
	name := r.PathValue("name")
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return "", ops.ErrUnknownDataSource
	}
	return name, nil
}

// reasonFor checks a reason.
func reasonFor(a ops.Action, reason string) (string, error) {
	reason = strings.TrimSpace(reason)
	switch {
	case reason == "" && a == ops.Discard:
		return "", badRequest("To discard needs a reason.", "")
	case utf8.RuneCountInString(reason) > maxReason:
		return "", badRequest("The reason is too long: at most 1000 characters.", "")
	case !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return "", badRequest("The reason is no text.", "")
	}
	return reason, nil
}

// A whole is a whole number that JSON gives as a number or as text.
type whole struct {
	n     int64
	given bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *whole) UnmarshalJSON(b []byte) error {
	text := string(b)
	if text == "null" {
		return nil
	}
	if len(b) > 1 && b[0] == '"' {
		text = string(b[1 : len(b)-1])
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("a number in the body is not a whole one, or too large")
	}
	*n = whole{v, true}
	return nil
}

// readJSON reads the body; an empty one is an empty object.
func readJSON(r *http.Request, to any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if errors.Is(err, io.EOF) {
		return nil
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	if err != nil {
		return badRequest("The body is not the JSON that is expected:", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRequest("The body is not the JSON that is expected:", "something follows it")
	}
	return nil
}

// readForm reads a form's body; its fields are those of the body alone.
func readForm(r *http.Request) (func(string) string, error) {
	if err := r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, err
		}
		return nil, badRequest("The form cannot be read.", "")
	}
	return r.PostForm.Get, nil
}

// number reads a whole number of a form from 0 to most.
func number(text string, most int64) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, badRequest("A number is missing, or too large.", "")
	}
	return int(n), nil
}
