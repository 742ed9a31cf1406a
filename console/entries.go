package console

import (
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

// entriesView is the list as the page shows it.
type entriesView struct {
	F         ops.Filter
	OlderThan string
	States    []ops.State
	Sources   []string
	Kinds     []kindView
	MoreKinds bool
	Entries   []ops.Entry
	Count     string
	Next      string
	First     string
	NoKind    string
	query     url.Values
	base      string
}

// Bulk leads to where all that the filter matches is decided.
func (v entriesView) Bulk(action string) string { return v.base + "/bulk/" + action + suffix(v.query) }

func suffix(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// kindView is a kind of error with a link to its entries.
type kindView struct {
	ops.Kind
	Anchor, Number, URL string
}

// Text is the error, with its code where the text does not say it.
func (k kindView) Text() string { return clip(k.Kind.Text, 200) }

// maxKinds is how many kinds a page shows.
const maxKinds = 12

func kindViews(l *language, base string, kinds []ops.Kind, q url.Values) []kindView {
	var all []kindView
	for i, k := range kinds {
		if i == maxKinds {
			break
		}
		to := maps.Clone(q)
		to.Set("kind", k.Key)
		all = append(all, kindView{k, "k" + strconv.Itoa(i), l.count(k.Count, k.More), base + "/entries" + suffix(to)})
	}
	return all
}

// filterQuery is the filter's part of a query, as it was given.
func filterQuery(q url.Values) url.Values {
	only := url.Values{}
	for _, name := range filterNames {
		if v := q.Get(name); v != "" {
			only.Set(name, v)
		}
	}
	return only
}

func (c *Console) entriesPage(w http.ResponseWriter, r *http.Request, p person) error {
	q := r.URL.Query()
	f, err := filterOf(q.Get, p)
	if err != nil {
		return err
	}
	page, err := pageOf(q, htmlPage)
	if err != nil {
		return err
	}
	page.Limit = min(page.Limit, 200)
	list, err := c.store().Entries(r.Context(), f, page)
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := entriesView{
		F: f, OlderThan: q.Get("olderThan"), States: []ops.State{ops.Waiting, ops.Leased, ops.Parked},
		Entries: list.Entries, query: filterQuery(q), base: c.cfg.BasePath,
	}
	here := c.cfg.BasePath + "/entries" + suffix(v.query)
	if list.Next != "" {
		v.Next = with(here, "after", list.Next)
	}
	if page.After != "" {
		v.First = here
	}
	if f.Kind != "" {
		rest := filterQuery(q)
		rest.Del("kind")
		v.NoKind = c.cfg.BasePath + "/entries" + suffix(rest)
	}
	n, err := c.store().Count(r.Context(), f, 0)
	if err != nil {
		return err
	}
	v.Count = l.count(n.N, n.More)
	if f.Kind == "" && page.After == "" {
		kinds, err := c.store().Kinds(r.Context(), f)
		if err != nil {
			return err
		}
		v.Kinds, v.MoreKinds = kindViews(l, c.cfg.BasePath, kinds.Kinds, v.query), kinds.More
	}
	c.render(w, r, p, http.StatusOK, "entries", v)
	return nil
}

// auditView is a page of the audit.
type auditView struct {
	Records     []ops.Record
	Next, First string
}

func (c *Console) auditPage(w http.ResponseWriter, r *http.Request, p person) error {
	page, err := pageOf(r.URL.Query(), htmlPage)
	if err != nil {
		return err
	}
	a, err := c.store().Audit(r.Context(), page)
	if err != nil {
		return err
	}
	v := auditView{Records: a.Records}
	here := c.cfg.BasePath + "/audit"
	if a.Next != "" {
		v.Next = with(here, "after", a.Next)
	}
	if page.After != "" {
		v.First = here
	}
	c.render(w, r, p, http.StatusOK, "audit", v)
	return nil
}
