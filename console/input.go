package console

import (
	"cmp"
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

// An input is a request, with its sender and its language. Its methods read parts of it. The first mistake
// stays in err.
type input struct {
	*http.Request
	person
	l *language
	// said is the query, or after body the form or the body of a call.
	said url.Values
	err  error
}

func (in *input) fail(err error) { in.err = cmp.Or(in.err, err) }

func (in *input) filter() ops.Filter {
	f := ops.Filter{
		DataSource: in.said.Get("dataSource"), State: ops.State(in.said.Get("state")), Text: in.said.Get("text"),
		Transaction: strings.TrimSpace(in.said.Get("transaction")), Kind: in.said.Get("kind"), Reveal: in.Role >= Reveal && in.said.Get("text") != "",
	}
	if age := strings.TrimSpace(in.said.Get("olderThan")); age != "" {
		span, err := ops.ParseSpan(age)
		if err != nil {
			in.fail(invalid("olderThan is %v", err))
		}
		f.OlderThan = span
	}
	in.fail(f.Check())
	return f
}

// query rejects unknown names in the query of a call: a misspelt filter would match everything.
func (in *input) query(known ...string) {
	q, err := url.ParseQuery(in.URL.RawQuery)
	if err != nil {
		in.fail(invalid("the address cannot be read"))
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			in.fail(unknown(name, known))
		}
		if len(values) > 1 {
			in.fail(invalid("the parameter %s is given twice", name))
		}
	}
}

func unknown(name string, known []string) error {
	return invalid("no parameter is called %+q; known: %s", name[:min(len(name), 60)], strings.Join(known, ", "))
}

// page reads the start and the length of a page.
func (in *input) page(usual int) ops.Page {
	order := in.said.Get("order")
	p := ops.Page{After: in.said.Get("after"), Limit: usual, Newest: order == "newest"}
	if order != "" && order != "oldest" && !p.Newest {
		in.fail(invalid("order is oldest or newest"))
	}
	if text := in.said.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if p.Limit = n; err != nil || n < 1 {
			p.Limit = -1
		}
	}
	in.fail(p.Check())
	return p
}

// id returns the entry id in the path.
func (in *input) id() string {
	id := in.PathValue("id")
	if id == "" || !ops.IsID(id) {
		in.fail(txlog.ErrNotFound)
	}
	return id
}

// action returns the action in the path, one of these.
func (in *input) action(these ...ops.Action) ops.Action {
	a := ops.Action(in.PathValue("action"))
	if !slices.Contains(these, a) {
		in.fail(errNoAction)
	}
	return a
}

// author returns the name and reason for the audit.
func (in *input) author() ops.By {
	return ops.By{Who: in.Name, Reason: strings.TrimSpace(in.said.Get("reason"))}
}

// by is author for an action.
func (in *input) by(a ops.Action) ops.By {
	by := in.author()
	in.fail(by.Check(a))
	return by
}

// number reads a whole number from 0 to most.
func (in *input) number(name string, most int) int {
	n, err := strconv.Atoi(strings.TrimSpace(in.said.Get(name)))
	if err != nil || n < 0 || n > most {
		in.fail(invalid("%s is a number from 0 to %d", name, most))
	}
	return n
}

// amendment reads the new text of a statement, and its number, 0 for the only one.
func (in *input) amendment() ops.Amendment {
	return ops.Amendment{SQL: in.said.Get("sql"), Parameters: in.said.Get("parameters"), Statement: in.statement()}
}

func (in *input) statement() int {
	if in.said.Get("statement") == "" {
		return 0
	}
	return in.number("statement", 4096)
}

// body reads a form, or the JSON object of a call. In a call, it rejects unknown names and lifts
// the fields of a filter to the top level.
func (in *input) body(known ...string) {
	if !isAPI(in.Request) {
		if err := in.ParseForm(); err != nil {
			in.fail(fmt.Errorf("%w: the form cannot be read: %w", ops.ErrInvalid, err))
		}
		in.said = in.PostForm
		return
	}
	in.said = url.Values{}
	var body map[string]json.RawMessage
	text, err := io.ReadAll(in.Body)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		in.fail(fmt.Errorf("%w: the body is not the JSON that is expected: %w", ops.ErrInvalid, err))
	}
	for name, value := range body {
		if !slices.Contains(known, name) {
			in.fail(unknown(name, known))
		}
		var text string
		var err error
		switch name {
		case "filter":
			var filter map[string]string
			err = json.Unmarshal(value, &filter)
			for field, given := range filter {
				if !slices.Contains(filterNames, field) {
					in.fail(unknown(field, filterNames))
				}
				in.said.Set(field, given)
			}
			if filter != nil {
				text = "given"
			}
		case "parameters": // an array, or a text that holds one
			if text = string(value); value[0] == '"' {
				err = json.Unmarshal(value, &text)
			}
		case "count", "perSecond", "statement":
			var n json.Number
			err = json.Unmarshal(value, &n)
			text = n.String()
		default:
			err = json.Unmarshal(value, &text)
		}
		if in.said.Set(name, text); err != nil {
			in.fail(invalid("the body's %s is not valid: %v", name, err))
		}
	}
}
