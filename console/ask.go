package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// askPage asks before something is done.
type askPage struct {
	Question, Meaning string
	// Counted are the words around CountedAt, the time of the count.
	Counted   []string
	CountedAt time.Time
	// Problem is why it was not done.
	Problem    string
	Impossible string
	Filter     []named
	Kinds      []kindView
	// OtherKinds describes the kinds missing from Kinds.
	OtherKinds string
	URL, Back  string
	Hidden     []named
	// Limit: it also asks for a number.
	Limit bool
	// Discard: it cannot be undone. Reason: it asks for a reason.
	Discard, Reason bool
	// Amends: it asks for a text and parameters, and a reason; of several, AmendsAll.
	Amends          bool
	AmendsAll       bool
	SQL, Parameters string
	Button          string
	status          int
}

type named struct{ Name, Value string }

var meanings = map[ops.Action]string{
	ops.Retry:      "What is retried is due at once, with its tries reset; the job delivers it in its next round.",
	ops.Park:       "What is parked is left alone until an operator retries or discards it.",
	ops.Discard:    "Discarded entries are erased and will never be delivered. This cannot be undone.",
	ops.Skip:       "The entry is parked, and those that wait behind it under its order key are delivered. Once one of them is, it will be refused.",
	ops.Amend:      "The statement is replaced; the audit keeps the old one. The entry stays parked: retry it afterwards. Only an entry that is certainly not applied can be amended.",
	ops.Compensate: "The applied parts of the group are compensated, the last one first; the others will never be applied. This cannot be undone.",
	ops.Pause:      "No job delivers to it until it is resumed. What is being delivered is finished; writes of applications go on, and what fails waits.",
	ops.Resume:     "Jobs deliver to it again.",
	ops.Limit:      "The limit holds for all jobs together, and not for the applications' own first attempts.",
}

// ask makes the page that asks before an action on what.
func ask(l *language, a ops.Action, what string) askPage {
	return askPage{
		Question: l.t("question "+string(a), what), Meaning: l.t(meanings[a]), Discard: a == ops.Discard, Reason: a == ops.Discard || a == ops.Skip,
		Button: l.t("action " + string(a)), status: http.StatusOK,
	}
}

func (s *site) askEntryPage(r *http.Request, p person) (any, error) {
	a, err := actionOf(r, append([]ops.Action{ops.Amend, ops.Skip}, onEntries...))
	if err != nil {
		return nil, err
	}
	if a == ops.Amend {
		return s.askAmend(r, p, r.URL.Query().Get, nil)
	}
	d, err := s.entry(r, p, false)
	if err != nil {
		return nil, err
	}
	l := languageOf(r)
	v := ask(l, a, l.t("1 entry"))
	v.Filter = []named{{l.t("Entry"), d.ID}, {l.t("Data source"), d.DataSource}, {"SQL", oneLine(d.Entry)}}
	v.Back = s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v.URL = v.Back + "/" + string(a)
	if a == ops.Discard && d.Kind != "" {
		v.URL = with(v.URL, "kind", d.Kind)
	}
	return v, nil
}

// askCompensatePage asks about the group of a soft transaction.
func (s *site) askCompensatePage(r *http.Request, _ person) (any, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	l := languageOf(r)
	v := ask(l, ops.Compensate, safetext.Line(id))
	v.Discard = true
	v.Back = s.cfg.BasePath + "/entries/" + url.PathEscape(id)
	v.URL = s.cfg.BasePath + "/transactions/" + url.PathEscape(id) + "/compensate"
	return v, nil
}

func (s *site) askBulkPage(r *http.Request, p person) (any, error) {
	a, err := actionOf(r, append([]ops.Action{ops.Amend}, onEntries...))
	if err != nil {
		return nil, err
	}
	return s.askBulk(r, p, a, r.URL.Query(), nil)
}

// askBulk counts the current matches of the filter and asks. problem is why the previous answer was
// not accepted.
func (s *site) askBulk(r *http.Request, p person, a ops.Action, q url.Values, problem *failure) (any, error) {
	typed := q
	if a == ops.Amend {
		q = filterQuery(q)
		q.Set("state", string(ops.Parked))
	}
	f, err := filterOf(q.Get, p)
	if err != nil {
		return nil, err
	}
	sel, err := s.store().Select(r.Context(), f)
	if err != nil {
		return nil, err
	}
	l := languageOf(r)
	n := len(sel.IDs)
	count := l.entries(n)
	if sel.More {
		count = l.t("%s entries", l.count(ops.MaxBulk, true))
	}
	v := ask(l, a, count)
	q = filterQuery(q)
	for _, name := range filterNames {
		if value := q.Get(name); value != "" {
			v.Hidden = append(v.Hidden, named{name, value})
		}
	}
	v.Filter = l.filter(func(name string) string {
		if name == "kind" {
			return l.kind(f.Kind)
		}
		return q.Get(name)
	})
	v.Counted, v.CountedAt = strings.SplitN(l.t("Counted at %s by the log's clock: what arrives or is parked later, and what was being delivered then, is not touched."), "%s", 2), sel.At
	v.Hidden = append(v.Hidden, named{"count", strconv.Itoa(n)}, named{"until", s.counted.keep(sel)})
	v.Back = s.cfg.BasePath + "/entries" + suffix(q)
	v.URL = s.cfg.BasePath + "/bulk/" + string(a)
	switch {
	case sel.More:
		v.Impossible = l.t("At most 100,000 entries are changed at once: narrow the filter.")
	case n == 0 && f.State == ops.Leased:
		v.Impossible = l.t("What is being delivered at this moment cannot be changed.")
	case n == 0:
		v.Impossible = l.t("No entry matches.")
	default:
		kinds, err := s.store().Kinds(r.Context(), f)
		if err != nil {
			return nil, err
		}
		v.Kinds, v.OtherKinds = kindViews(l, s.cfg.BasePath, kinds.Kinds, q, maxKinds)
	}
	if a == ops.Amend && v.Impossible == "" {
		if err := s.askAmendAll(r, p, sel, typed, &v); err != nil {
			return nil, err
		}
	}
	if problem != nil {
		v.Problem, v.status = l.t(problem.text), problem.status
		if a == ops.Amend {
			v.Problem = safetext.Lines(v.Problem + " " + l.say(problem.detail))
		}
	}
	return v, nil
}

func (s *site) askSourcePage(r *http.Request, _ person) (any, error) {
	a, err := actionOf(r, onSources)
	if err != nil {
		return nil, err
	}
	name := s.sourceOf(r)
	v := ask(languageOf(r), a, safetext.Line(name))
	v.Limit = a == ops.Limit
	v.Back = s.cfg.BasePath + "/"
	v.URL = controlURL(s.cfg.BasePath, name, a)
	return v, nil
}
