package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/ops"
)

const (
	apiPage  = 100
	htmlPage = 50
)

// filterNames are those of a filter, in a query and in JSON alike.
var filterNames = []string{"dataSource", "state", "text", "transaction", "olderThan", "kind"}

// A field gives what a query, a form or a body says under a name; empty for nothing.
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

// queryOf checks that a query holds nothing but what is known: a filter that is
// misspelt would match everything.
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

// pageOf reads where a page begins and how long it is.
func pageOf(q url.Values, usual int) (ops.Page, error) {
	p := ops.Page{After: q.Get("after"), Limit: usual}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if p.Limit = n; err != nil || n < 1 {
			p.Limit = -1
		}
	}
	return p, p.Check()
}

// idOf is the entry that the path names.
func idOf(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if id == "" || !ops.IsID(id) {
		return "", ops.ErrNotFound
	}
	return id, nil
}

// by is who does something and why, for the audit.
func (p person) by(a ops.Action, reason string) (ops.By, error) {
	by := ops.By{Who: p.Name, Reason: strings.TrimSpace(reason)}
	return by, by.Check(a)
}

// readJSON reads the body; an empty one is an empty object.
func readJSON(r *http.Request, to any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = cmp.Or(err, errors.New("something follows it"))
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	return invalid("the body is not the JSON that is expected: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// readForm reads a form's body; its fields are those of the body alone.
func readForm(r *http.Request) (field, error) {
	err := r.ParseForm()
	var large *http.MaxBytesError
	if err != nil && !errors.As(err, &large) {
		err = invalid("the form cannot be read")
	}
	return r.PostForm.Get, err
}

// number reads a whole number from 0 to most.
func number(name, text string, most int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > most {
		return 0, invalid("%s is a number from 0 to %d", name, most)
	}
	return n, nil
}
