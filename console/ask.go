package console

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// askPage asks before something is done.
type askPage struct {
	Question, Meaning string
	// Counted says when what is asked about was counted.
	Counted string
	// Problem is why it was not done.
	Problem    string
	Impossible string
	Filter     []named
	Kinds      []kindView
	// OtherKinds says what is left out of Kinds.
	OtherKinds string
	URL, Back  string
	Hidden     []named
	// Limit: it also asks for a number.
	Limit          bool
	ReasonRequired bool
	Danger         bool
	Button         string
}

type named struct{ Name, Value string }

var meanings = map[ops.Action]string{
	ops.Retry:   "What is retried is due at once, with its tries reset; the job delivers it in its next round.",
	ops.Park:    "What is parked is left alone until an operator retries or discards it.",
	ops.Discard: "Discarded entries are erased and will never be delivered. This cannot be undone.",
	ops.Pause:   "No job delivers to it until it is resumed. What is being delivered is finished; writes of applications go on, and what fails waits.",
	ops.Resume:  "Jobs deliver to it again.",
	ops.Limit:   "The limit holds for all jobs together, and not for the applications' own first attempts.",
}

// ask asks about what an action is to be done to.
func ask(l *language, a ops.Action, what string) askPage {
	return askPage{
		Question: l.t("question "+string(a), what), Meaning: l.t(meanings[a]), ReasonRequired: a == ops.Discard, Danger: a == ops.Discard,
		Button: l.t("action " + string(a)),
	}
}

func (s forms) askEntryPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := actionOf(r.PathValue("action"), onEntries)
	if err != nil {
		return err
	}
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := ask(l, a, l.t("1 entry"))
	v.Filter = []named{{l.t("Entry"), d.ID}, {l.t("Data source"), d.DataSource}, {"SQL", oneLine(d.Entry)}}
	v.Back = s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v.URL = v.Back + "/" + string(a)
	if a == ops.Discard && d.Kind != "" {
		v.URL = with(v.URL, "kind", d.Kind)
	}
	s.render(w, r, p, http.StatusOK, v)
	return nil
}

func (s forms) actPage(w http.ResponseWriter, r *http.Request, p person) error {
	said, err := readForm(r)
	if err != nil {
		return err
	}
	a, err := actionOf(r.PathValue("action"), onEntries)
	if err != nil {
		return err
	}
	id, err := s.act(r, p, a, said("reason"))
	if err != nil {
		return err
	}
	to := s.cfg.BasePath + "/entries/" + url.PathEscape(id)
	if a == ops.Discard {
		to = with(to+"/next", "kind", r.URL.Query().Get("kind"))
	}
	http.Redirect(w, r, s.afterwards(r, p, a, to, nil), http.StatusSeeOther)
	return nil
}

func (s forms) askBulkPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := actionOf(r.PathValue("action"), onEntries)
	if err != nil {
		return err
	}
	return s.askBulk(w, r, p, a, r.URL.Query(), nil)
}

// askBulk counts what the filter matches now and asks. problem is why the
// previous answer was not accepted.
func (s forms) askBulk(w http.ResponseWriter, r *http.Request, p person, a ops.Action, q url.Values, problem *failure) error {
	f, err := filterOf(q.Get, p)
	if err != nil {
		return err
	}
	sel, err := s.store().Select(r.Context(), f)
	if err != nil {
		return err
	}
	l := languageOf(r)
	n := len(sel.IDs)
	count := l.entries(n)
	if sel.More {
		count = l.t("%s entries", l.count(ops.MaxBulk, true))
	}
	v, status := ask(l, a, count), http.StatusOK
	q = filterQuery(q)
	for _, name := range filterNames {
		if value := q.Get(name); value != "" {
			v.Hidden = append(v.Hidden, named{name, value})
			if name == "state" {
				value = l.t("state " + value)
			}
			if name != "kind" {
				v.Filter = append(v.Filter, named{l.t("filter " + name), value})
			}
		}
	}
	if len(q) == 0 {
		v.Filter = []named{{l.t("Filter"), l.t("none: every entry of the log")}}
	}
	v.Counted = l.t("Counted at %s by the log's clock: what arrives or is parked later, and what was being delivered then, is not touched.", sel.At.Format("2006-01-02 15:04:05 MST"))
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
			return err
		}
		v.Kinds, v.OtherKinds = kindViews(l, s.cfg.BasePath, kinds.Kinds, q, maxKinds)
	}
	if problem != nil {
		v.Problem, status = l.t(problem.text), problem.status
	}
	s.render(w, r, p, status, v)
	return nil
}

func (s forms) bulkPage(w http.ResponseWriter, r *http.Request, p person) error {
	said, err := readForm(r)
	if err != nil {
		return err
	}
	a, err := actionOf(r.PathValue("action"), onEntries)
	if err != nil {
		return err
	}
	_, changed, err := s.bulk(r, p, a, said)
	if err != nil {
		if f := failureOf(err); f.status == http.StatusConflict {
			return s.askBulk(w, r, p, a, r.PostForm, f)
		}
		return err
	}
	to := s.cfg.BasePath + "/entries" + suffix(filterQuery(r.PostForm))
	http.Redirect(w, r, s.afterwards(r, p, a, to, changed), http.StatusSeeOther)
	return nil
}

func (s forms) askSourcePage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := actionOf(r.PathValue("action"), onSources)
	if err != nil {
		return err
	}
	name := r.PathValue("name")
	v := ask(languageOf(r), a, safetext.Line(name))
	v.Limit = a == ops.Limit
	v.Back = s.cfg.BasePath + "/"
	v.URL = s.cfg.BasePath + "/data-sources/" + url.PathEscape(name) + "/" + string(a)
	s.render(w, r, p, http.StatusOK, v)
	return nil
}

func (s forms) sourcePage(w http.ResponseWriter, r *http.Request, p person) error {
	said, err := readForm(r)
	if err != nil {
		return err
	}
	a, err := s.control(r, p, said)
	if err != nil {
		return err
	}
	http.Redirect(w, r, s.afterwards(r, p, a, s.cfg.BasePath+"/", nil), http.StatusSeeOther)
	return nil
}
