package console

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/ops"
)

type entriesView struct {
	F         ops.Filter
	OlderThan string
	States    []ops.State
	kindList
	MoreKinds bool
	KindIs    string
	// AllKinds leads to this page with the kinds of all entries. NoKinds means that there are too
	// many entries to group at once. EveryKind leads to the page with the kinds beyond maxKinds.
	AllKinds, EveryKind string
	NoKinds             bool
	Entries             []ops.Entry
	Count               string
	Next, Previous      string
	First               string
	NoKind              string
	// Order leads to this list in the other order; Newest is its own.
	Order    string
	Newest   bool
	Sources  []string
	Progress string
	query    url.Values
	base     string
}

// Bulk leads to the page that asks about an action on all matching entries.
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

// Text is the error, with its code unless the text contains it.
func (k kindView) Text() string { return clip(k.Kind.Text, 200) }

const maxKinds = 12

// kindList is the most frequent kinds. OtherKinds describes the rest.
type kindList struct {
	Kinds      []kindView
	OtherKinds string
}

// kindViews lists at most that many kinds.
func kindViews(l *language, base string, kinds []ops.Kind, q url.Values, most int) (v kindList) {
	if rest := len(kinds) - most; rest > 0 {
		n, more := 0, false
		for _, k := range kinds[most:] {
			n, more = n+k.Count, more || k.More
		}
		v.OtherKinds = l.t("and %s entries of %d further kinds", l.count(n, more), rest)
	}
	for i, k := range kinds[:min(len(kinds), most)] {
		to := maps.Clone(q)
		to.Set("kind", k.Key)
		v.Kinds = append(v.Kinds, kindView{k, "k" + strconv.Itoa(i), l.count(k.Count, k.More), base + "/entries" + suffix(to), base + "/bulk/retry" + suffix(to)})
	}
	return v
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

func (s *site) entriesPage(in *input) (any, error) {
	f, page := in.filter(), in.page(htmlPage)
	if in.err != nil {
		return nil, in.err
	}
	page.Limit = min(page.Limit, 200)
	ctx, l, before, wants := in.Context(), in.l, in.said.Get("before"), in.said.Get("kinds")
	grouped, most := &ops.Kinds{}, maxKinds
	if wants == "every" {
		most = math.MaxInt
	}
	var err error
	if f.Kind == "" && page.After == "" && before == "" {
		wait := kindsWithin
		if wants != "" {
			wait = time.Hour // its own limit is less
		}
		if grouped, err = s.kinds(ctx, f, wait); err != nil {
			return nil, err
		}
	}
	list, previous, err := s.listed(ctx, f, page, before)
	if err != nil {
		return nil, err
	}
	v := entriesView{
		F: f, OlderThan: in.said.Get("olderThan"), States: []ops.State{ops.Waiting, ops.Leased, ops.Parked},
		Entries: list.Entries, Newest: page.Newest, query: filterQuery(in.said), base: s.cfg.BasePath,
	}
	if v.Sources, err = s.sources(ctx, f.DataSource); err != nil {
		return nil, err
	}
	if v.Progress, err = s.progress(ctx, l, in.said.Get("follow")); err != nil {
		return nil, err
	}
	oldest := s.cfg.BasePath + "/entries" + suffix(v.query)
	here := oldest
	if v.Order = with(oldest, "order", "newest"); page.Newest {
		v.Order, here = oldest, v.Order
	}
	if list.Next != "" {
		v.Next = with(here, "after", list.Next)
	}
	if previous != "" {
		v.Previous = with(here, "before", previous)
	}
	if page.After != "" || before != "" {
		v.First = here
	}
	if f.Kind != "" {
		rest := filterQuery(in.said)
		rest.Del("kind")
		v.NoKind = s.cfg.BasePath + "/entries" + suffix(rest)
		v.KindIs = l.kind(f.Kind)
	}
	n, err := s.store().Count(ctx, f, 0)
	if err != nil {
		return nil, err
	}
	v.Count = l.count(n.N, n.More)
	v.AllKinds = with(s.selfOf(in.Request), "kinds", cmp.Or(wants, "all"))
	v.EveryKind = with(s.selfOf(in.Request), "kinds", "every")
	if v.NoKinds = grouped == nil; !v.NoKinds {
		v.kindList = kindViews(l, s.cfg.BasePath, grouped.Kinds, v.query, most)
		v.MoreKinds = grouped.More
	}
	return v, nil
}

// listed is a page of the list, with the start of the previous page, if any. The list comes after
// page.After, or before an id if that is not empty.
func (s *site) listed(ctx context.Context, f ops.Filter, page ops.Page, before string) (list *ops.Entries, previous string, err error) {
	if before == "" {
		if list, err = s.store().Entries(ctx, f, page); err == nil && page.After != "" && len(list.Entries) > 0 {
			previous = list.Entries[0].ID
		}
		return list, previous, err
	}
	back := page
	back.After, back.Newest = before, !page.Newest
	if err := back.Check(); err != nil {
		return nil, "", err
	}
	if list, err = s.store().Entries(ctx, f, back); err != nil {
		return nil, "", err
	}
	slices.Reverse(list.Entries)
	if n := len(list.Entries); n > 0 {
		if list.Next != "" {
			previous = list.Entries[0].ID
		}
		list.Next = list.Entries[n-1].ID
	}
	return list, previous, nil
}

// sources are the names of the data sources, and one more.
func (s *site) sources(ctx context.Context, chosen string) (names []string, err error) {
	o, err := s.store().Overview(ctx, ops.OverviewOptions{Cap: 1})
	if err != nil {
		return nil, err
	}
	for _, d := range o.DataSources {
		names = append(names, d.Name)
	}
	if chosen != "" && !slices.Contains(names, chosen) {
		names = append(names, chosen)
	}
	return names, nil
}

// progress describes the current state of the entries retried by an audit record.
func (s *site) progress(ctx context.Context, l *language, id string) (string, error) {
	r, err := s.record(ctx, id)
	var did ops.Bulk
	if err != nil || r.Action != ops.Retry || json.Unmarshal([]byte(r.What), &did) != nil || len(did.IDs) == 0 {
		return "", err
	}
	p, err := s.store().Progress(ctx, did.IDs)
	text := l.t("Of %s retried: %s delivered, %s parked, %s waiting.", l.entries(r.Count), l.count(p.Gone, false), l.count(p.Parked, false), l.count(p.Waiting, r.Count > len(did.IDs)))
	return text, err
}

// nextPage leads to the next entry of a kind of error, else to the remaining entries.
func (s *site) nextPage(in *input) (any, error) {
	id, f := in.id(), ops.Filter{Kind: in.said.Get("kind")}
	in.fail(f.Check())
	if in.err != nil {
		return nil, in.err
	}
	to := s.cfg.BasePath + "/entries"
	if f.Kind != "" {
		list, err := s.store().Entries(in.Context(), f, ops.Page{After: id, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(list.Entries) > 0 {
			to += "/" + url.PathEscape(list.Entries[0].ID)
		} else {
			to = with(to, "kind", f.Kind)
		}
	}
	if done := in.said.Get("done"); done != "" {
		to = with(to, "done", done)
	}
	return redirect(to), nil
}

// kindsWithin is how long the list waits for its errors to be grouped. A browser asks again for a
// result that was not ready.
const kindsWithin = 120 * time.Millisecond

// known remembers the kinds of some filters, for when the machine is busy.
type known struct {
	mu  sync.Mutex
	all map[ops.Filter]*ops.Kinds
}

// kinds groups the errors of f's entries. After wait, it returns the previous result for f, or nil.
func (s *site) kinds(ctx context.Context, f ops.Filter, wait time.Duration) (*ops.Kinds, error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	kinds, err := s.store().Kinds(bounded, f)
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	switch {
	case err != nil && dberr.TimedOut(ctx, bounded):
		return s.known.all[f], nil
	case err != nil:
		return nil, err
	case len(s.known.all) >= 100:
		clear(s.known.all)
	}
	s.known.all[f] = kinds
	return kinds, nil
}

type auditView struct {
	Records     []ops.Record
	Next, First string
	// Revealed: it has the values of amended parameters; Reveal leads to it with them.
	Revealed bool
	Reveal   string
}

func (s *site) auditPage(in *input) (any, error) {
	page := in.page(htmlPage)
	a, err := s.audit(in, page)
	if err != nil {
		return nil, err
	}
	v := auditView{Records: a.Records, Revealed: wantsValues(in.Request)}
	if in.Role >= Reveal && slices.ContainsFunc(a.Records, ops.Masked) {
		v.Reveal = with(s.selfOf(in.Request), "reveal", "true")
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
