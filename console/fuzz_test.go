package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/ops"
)

const maxText = 1024

// A request's names are either refused or comparable in the log's database: valid text without NUL,
// of bounded length, and bounded numbers.
func FuzzWhatARequestNamesIsRefusedOrFits(f *testing.F) {
	for _, s := range []string{
		"", "dataSource=127.0.0.1%3A3306%2Forders&state=parked&olderThan=7d&text=lock+wait&transaction=0192f3a0-7b1c-7def-8000-0123456789ab&kind=Error%201205",
		"after=0192f3a0&limit=1000", "limit=18446744073709551616", "limit=-1", "limit=0", "olderThan=18446744073709551615d", "olderThan=1e9h", "olderThan=-5m",
		"text=%00", "text=%ff%fe", "state=PARKED", "after=%0a", "text=a&text=b", "nosuch=1", "%zz", "transaction=%20x%20", "olderThan=९d",
	} {
		f.Add(s, s)
	}
	f.Add("", strings.Repeat("x", 1001))
	f.Fuzz(func(t *testing.T, query, value string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.RawQuery = query
		fits := func(what, s string, most int) {
			if len(s) > most || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
				t.Errorf("%s of %d bytes passes: %q", what, len(s), s)
			}
		}
		isID := func(what, s string) {
			fits(what, s, 64)
			for _, c := range []byte(s) {
				if c <= ' ' || c > '~' {
					t.Errorf("%s passes: %q", what, s)
				}
			}
		}
		asks := func(said url.Values) *input { return &input{Request: r, person: local, said: said} }
		filter := func(said url.Values) {
			in := asks(said)
			got := in.filter()
			if in.err != nil {
				return
			}
			fits("dataSource", got.DataSource, maxText)
			fits("text", got.Text, maxText)
			fits("kind", got.Kind, maxText)
			isID("transaction", got.Transaction)
			if got.OlderThan < 0 {
				t.Errorf("olderThan %q is read as %v", said.Get("olderThan"), got.OlderThan)
			}
		}
		q := r.URL.Query()
		in := asks(q)
		if in.query(append(filterNames, "after", "limit")...); in.err == nil {
			filter(q)
			if p := in.page(htmlPage); in.err == nil {
				isID("after", p.After)
				if p.Limit < 1 || p.Limit > ops.MaxPage {
					t.Errorf("limit %q is read as %d", q.Get("limit"), p.Limit)
				}
			}
		}
		all := url.Values{"after": {value}, "limit": {value}, "reason": {value}, "it": {value}}
		for _, name := range filterNames {
			all.Set(name, value)
		}
		filter(all)
		in = asks(all)
		if in.page(htmlPage); in.err == nil {
			isID("after", value)
		}
		r.SetPathValue("id", value)
		in = asks(all)
		if id := in.id(); in.err == nil {
			isID("id", id)
		}
		in = asks(all)
		if by := in.by(ops.Retry); in.err == nil {
			fits("reason", by.Reason, 4*1000)
		}
		// Go's own parsing gives a second opinion on numbers and times.
		in = asks(all)
		n, err := in.number("it", ops.MaxPerSecond), in.err
		want, wantErr := strconv.Atoi(strings.TrimSpace(value))
		if ok := wantErr == nil && want >= 0 && want <= ops.MaxPerSecond; ok != (err == nil) || ok && n != want {
			t.Errorf("the number %q is read as %d, %v", value, n, err)
		}
		in = asks(url.Values{"olderThan": {value}})
		d, err := in.filter().OlderThan, in.err
		if other, otherErr := time.ParseDuration(strings.TrimSpace(value)); otherErr == nil && other >= 0 && (err != nil || d != other) && strings.Trim(value, " 0") != "" {
			t.Errorf("the time %q is read as %v, %v; Go says %v", value, d, err, other)
		}
		call := &input{Request: httptest.NewRequest(http.MethodPost, "/api/v1/entries/bulk", strings.NewReader(value))}
		call.body("filter", "count", "reason")
	})
}
