package console

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/ops"
)

// entriesView is the list as the page shows it.
type entriesView struct {
	F         ops.Filter
	OlderThan string
	States    []ops.State
	Kinds     []kindView
	MoreKinds bool
	// OtherKinds says what is left out of Kinds, KindIs which kind the list is of.
	OtherKinds, KindIs string
	// AllKinds leads to this page with the kinds of all entries; NoKinds means that this
	// page has none, because there are too many entries to group at once. EveryKind leads
	// to it with those beyond maxKinds.
	AllKinds, EveryKind string
	NoKinds             bool
	Entries             []ops.Entry
	Count               string
	Next                string
	First               string
	NoKind              string
	query               url.Values
	base                string
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
	Anchor, Number, URL, Retry string
}

// Text is the error, with its code where the text does not say it.
func (k kindView) Text() string { return clip(k.Kind.Text, 200) }

// maxKinds is how many kinds a page shows.
const maxKinds = 12

// kindViews shows at most that many, and says what it leaves out.
func kindViews(l *language, base string, kinds []ops.Kind, q url.Values, most int) (all []kindView, others string) {
	if rest := len(kinds) - most; rest > 0 {
		n, more := 0, false
		for _, k := range kinds[most:] {
			n, more = n+k.Count, more || k.More
		}
		others = l.t("and %s entries of %d further kinds", l.count(n, more), rest)
	}
	for i, k := range kinds[:min(len(kinds), most)] {
		to := maps.Clone(q)
		to.Set("kind", k.Key)
		all = append(all, kindView{k, "k" + strconv.Itoa(i), l.count(k.Count, k.More), base + "/entries" + suffix(to), base + "/bulk/retry" + suffix(to)})
	}
	return all, others
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

func (s pages) entriesPage(r *http.Request, p person) (any, error) {
	q := r.URL.Query()
	f, err := filterOf(q.Get, p)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(q, htmlPage)
	if err != nil {
		return nil, err
	}
	page.Limit = min(page.Limit, 200)
	grouped, most := &ops.Kinds{}, maxKinds
	if q.Get("kinds") == "every" {
		most = math.MaxInt
	}
	if f.Kind == "" && page.After == "" {
		wait := kindsWithin
		if q.Get("kinds") != "" {
			wait = time.Hour // its own limit is less
		}
		if grouped, err = s.kinds(r.Context(), f, wait); err != nil {
			return nil, err
		}
	}
	list, err := s.store().Entries(r.Context(), f, page)
	if err != nil {
		return nil, err
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
		v.KindIs = l.kind(f.Kind)
	}
	n, err := s.store().Count(r.Context(), f, 0)
	if err != nil {
		return nil, err
	}
	v.Count = l.count(n.N, n.More)
	v.AllKinds = with(s.selfOf(r), "kinds", cmp.Or(q.Get("kinds"), "all"))
	v.EveryKind = with(s.selfOf(r), "kinds", "every")
	if v.NoKinds = grouped == nil; !v.NoKinds {
		v.Kinds, v.OtherKinds = kindViews(l, s.cfg.BasePath, grouped.Kinds, v.query, most)
		v.MoreKinds = grouped.More
	}
	return v, nil
}

// nextPage leads to the next entry of a kind of error, else to those that are left.
func (s pages) nextPage(r *http.Request, p person) (any, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	f, err := filterOf(func(name string) string { return map[string]string{"kind": r.URL.Query().Get("kind")}[name] }, p)
	if err != nil {
		return nil, err
	}
	to := s.cfg.BasePath + "/entries"
	if f.Kind != "" {
		list, err := s.store().Entries(r.Context(), f, ops.Page{After: id, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(list.Entries) > 0 {
			to += "/" + url.PathEscape(list.Entries[0].ID)
		} else {
			to = with(to, "kind", f.Kind)
		}
	}
	if done := r.URL.Query().Get("done"); done != "" {
		to = with(to, "done", done)
	}
	return redirect(to), nil
}

// kindsWithin is for how long the list waits for its errors to be grouped. A
// browser asks again for what was not ready by then.
const kindsWithin = 120 * time.Millisecond

// kinds groups the errors that f selects; nil if that takes longer than wait.
func (s pages) kinds(ctx context.Context, f ops.Filter, wait time.Duration) (*ops.Kinds, error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	kinds, err := s.store().Kinds(bounded, f)
	if err != nil && dberr.TimedOut(ctx, bounded) {
		return nil, nil
	}
	return kinds, err
}

// auditView is a page of the audit.
type auditView struct {
	Records     []ops.Record
	Next, First string
	// Revealed: it has the values of amended parameters; Reveal leads to it with them.
	Revealed bool
	Reveal   string
}

func (s pages) auditPage(r *http.Request, p person) (any, error) {
	page, err := pageOf(r.URL.Query(), htmlPage)
	if err != nil {
		return nil, err
	}
	a, err := s.audit(r, p, page)
	if err != nil {
		return nil, err
	}
	v := auditView{Records: a.Records, Revealed: wantsValues(r)}
	if p.Role >= Reveal && slices.ContainsFunc(a.Records, ops.Masked) {
		v.Reveal = with(s.selfOf(r), "reveal", "true")
	}
	here := s.cfg.BasePath + "/audit"
	if a.Next != "" {
		v.Next = with(here, "after", a.Next)
	}
	if page.After != "" {
		v.First = here
	}
	return v, nil
}
