package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

const (
	apiPage  = 100
	htmlPage = 50
)

// filterNames are those of a filter, in a query and in JSON alike.
var filterNames = []string{"dataSource", "state", "text", "transaction", "olderThan", "kind"}

// A field looks a name up in a query, a form or a body; empty if missing.
type field func(name string) string

// filterOf reads a filter.
func filterOf(said field, p person) (f ops.Filter, err error) {
	f = ops.Filter{
		DataSource: said("dataSource"), State: ops.State(said("state")), Text: said("text"),
		Transaction: strings.TrimSpace(said("transaction")), Kind: said("kind"), Reveal: p.Role >= Reveal && said("text") != "",
	}
	if age := strings.TrimSpace(said("olderThan")); age != "" {
		if f.OlderThan, err = ops.ParseSpan(age); err != nil {
			return f, invalid("olderThan is %v", err)
		}
	}
	return f, f.Check()
}

// queryOf rejects unknown names in a query: a misspelt filter would match everything.
func queryOf(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the address cannot be read")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, unknown(name, known)
		}
		if len(values) > 1 {
			return nil, invalid("the parameter %s is given twice", name)
		}
	}
	return q, nil
}

func unknown(name string, known []string) error {
	return invalid("no parameter is called %+q; known: %s", name[:min(len(name), 60)], strings.Join(known, ", "))
}

// pageOf reads the start and the length of a page.
func pageOf(q url.Values, usual int) (ops.Page, error) {
	p := ops.Page{After: q.Get("after"), Limit: usual, Newest: q.Get("order") == "newest"}
	if o := q.Get("order"); o != "" && o != "oldest" && !p.Newest {
		return p, invalid("order is oldest or newest")
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if p.Limit = n; err != nil || n < 1 {
			p.Limit = -1
		}
	}
	return p, p.Check()
}

// idOf returns the entry id in the path.
func idOf(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if id == "" || !ops.IsID(id) {
		return "", txlog.ErrNotFound
	}
	return id, nil
}

// by returns the name and reason for the audit.
func (p person) by(a ops.Action, reason string) (ops.By, error) {
	by := ops.By{Who: p.Name, Reason: strings.TrimSpace(reason)}
	return by, by.Check(a)
}

// bodyOf reads a form, or the JSON object of a call. In a call, it rejects unknown names and lifts
// the fields of a filter to the top level.
func bodyOf(r *http.Request, known ...string) (field, error) {
	if !isAPI(r) {
		if err := r.ParseForm(); err != nil {
			return nil, fmt.Errorf("%w: the form cannot be read: %w", ops.ErrInvalid, err)
		}
		return r.PostForm.Get, nil
	}
	var body map[string]json.RawMessage
	text, err := io.ReadAll(r.Body)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the body is not the JSON that is expected: %w", ops.ErrInvalid, err)
	}
	said := map[string]string{}
	for name, value := range body {
		if !slices.Contains(known, name) {
			return nil, unknown(name, known)
		}
		switch name {
		case "filter":
			var filter map[string]string
			err = json.Unmarshal(value, &filter)
			for field, text := range filter {
				if !slices.Contains(filterNames, field) {
					return nil, unknown(field, filterNames)
				}
				said[field] = text
			}
			if filter != nil {
				said[name] = "given"
			}
		case "parameters": // an array, or a text that holds one
			text := string(value)
			if value[0] == '"' {
				err = json.Unmarshal(value, &text)
			}
			said[name] = text
		case "count", "perSecond", "statement":
			var n json.Number
			err = json.Unmarshal(value, &n)
			said[name] = n.String()
		default:
			var text string
			err = json.Unmarshal(value, &text)
			said[name] = text
		}
		if err != nil {
			return nil, invalid("the body's %s is not valid: %v", name, err)
		}
	}
	return func(name string) string { return said[name] }, nil
}

// number reads a whole number from 0 to most.
func number(name, text string, most int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > most {
		return 0, invalid("%s is a number from 0 to %d", name, most)
	}
	return n, nil
}
