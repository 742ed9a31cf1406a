package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

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
	// AllKinds leads to this page with all kinds; NoKinds means that this page
	// has none, because there are too many entries to group at once.
	AllKinds string
	NoKinds  bool
	Entries  []ops.Entry
	Count    string
	Next     string
	First    string
	NoKind   string
	query    url.Values
	base     string
}

// Bulk leads to the page on which all that the filter matches is decided.
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

func (s pages) entriesPage(w http.ResponseWriter, r *http.Request, p person) error {
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
	kinds := func() (*ops.Kinds, error) { return &ops.Kinds{}, nil }
	if f.Kind == "" && page.After == "" {
		wait := kindsWithin
		if q.Get("kinds") == "all" {
			wait = time.Hour // its own limit is less
		}
		kinds = s.kinds(r.Context(), f, wait)
	}
	list, err := s.store().Entries(r.Context(), f, page)
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := entriesView{
		F: f, OlderThan: q.Get("olderThan"), States: []ops.State{ops.Waiting, ops.Leased, ops.Parked},
		Entries: list.Entries, query: filterQuery(q), base: s.cfg.BasePath,
	}
	here := s.cfg.BasePath + "/entries" + suffix(v.query)
	if list.Next != "" {
		v.Next = with(here, "after", list.Next)
	}
	if page.After != "" {
		v.First = here
	}
	if f.Kind != "" {
		rest := filterQuery(q)
		rest.Del("kind")
		v.NoKind = s.cfg.BasePath + "/entries" + suffix(rest)
	}
	n, err := s.store().Count(r.Context(), f, 0)
	if err != nil {
		return err
	}
	v.Count = l.count(n.N, n.More)
	grouped, err := kinds()
	if err != nil {
		return err
	}
	v.AllKinds = with(s.selfOf(r), "kinds", "all")
	if v.NoKinds = grouped == nil; !v.NoKinds {
		v.Kinds, v.MoreKinds = kindViews(l, s.cfg.BasePath, grouped.Kinds, v.query), grouped.More
	}
	s.render(w, r, p, http.StatusOK, "entries", v)
	return nil
}

// kindsWithin is for how long the list waits for its errors to be grouped. A
// browser asks again for what was not ready by then.
const kindsWithin = 120 * time.Millisecond

// kinds begins to group the errors that f selects. The result is nil if they are not
// grouped within wait from now.
func (s pages) kinds(ctx context.Context, f ops.Filter, wait time.Duration) (result func() (*ops.Kinds, error)) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	var kinds *ops.Kinds
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil { // no server recovers here
				err = fmt.Errorf("grouping the errors panicked: %v", p)
			}
		}()
		kinds, err = s.store().Kinds(ctx, f)
	}()
	return func() (*ops.Kinds, error) {
		defer cancel()
		<-done
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, nil
		}
		return kinds, err
	}
}

// auditView is a page of the audit.
type auditView struct {
	Records     []ops.Record
	Next, First string
}

func (s pages) auditPage(w http.ResponseWriter, r *http.Request, p person) error {
	page, err := pageOf(r.URL.Query(), htmlPage)
	if err != nil {
		return err
	}
	a, err := s.store().Audit(r.Context(), page)
	if err != nil {
		return err
	}
	v := auditView{Records: a.Records}
	here := s.cfg.BasePath + "/audit"
	if a.Next != "" {
		v.Next = with(here, "after", a.Next)
	}
	if page.After != "" {
		v.First = here
	}
	s.render(w, r, p, http.StatusOK, "audit", v)
	return nil
}
