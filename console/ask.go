package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

// askPage asks before something is done.
type askPage struct {
	Question, Meaning string
	// Problem is why it was not done.
	Problem    string
	Impossible string
	// Logs are those in which it can be done, if not in all of several at once.
	Logs      []named
	Filter    []named
	Kinds     []kindView
	URL, Back string
	Hidden    []named
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
	ops.Discard: "What is discarded is erased for good: it will not be delivered. This cannot be undone.",
	ops.Pause:   "No job delivers to it until it is resumed. What is being delivered is finished; writes of applications go on, and what fails waits.",
	ops.Resume:  "Jobs deliver to it again.",
	ops.Limit:   "The limit holds for all jobs together, and not for the applications' own first attempts.",
}

func noSuchAction() error {
	return &failure{status: http.StatusNotFound, text: "There is no such action."}
}

// onEntries gives the action of the path, if it is one on entries.
func onEntries(r *http.Request) (ops.Action, error) {
	switch a := ops.Action(r.PathValue("action")); a {
	case ops.Retry, ops.Park, ops.Discard:
		return a, nil
	default:
		return "", noSuchAction()
	}
}

func ask(l *language, a ops.Action, question string) askPage {
	return askPage{
		Question: question, Meaning: l.t(meanings[a]), ReasonRequired: a == ops.Discard, Danger: a == ops.Discard,
		Button: l.t("action " + string(a)),
	}
}

func (s forms) askEntryPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := onEntries(r)
	if err != nil {
		return err
	}
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := ask(l, a, l.t("question "+string(a), l.t("1 entry")))
	v.Filter = []named{{l.t("Entry"), d.ID}, {l.t("Data source"), d.DataSource}, {"SQL", oneLine(d.Entry)}}
	v.Back = s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v.URL = v.Back + "/" + string(a)
	s.render(w, r, p, http.StatusOK, "ask", v)
	return nil
}

func (s forms) actPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := onEntries(r)
	if err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	field, err := readForm(r)
	if err != nil {
		return err
	}
	reason, err := reasonFor(a, field("reason"))
	if err != nil {
		return err
	}
	if err := s.store().Act(r.Context(), a, id, p.by(reason)); err != nil {
		return err
	}
	s.events.changed()
	to := s.cfg.BasePath + "/entries"
	if a != ops.Discard {
		to += "/" + url.PathEscape(id)
	}
	http.Redirect(w, r, with(with(to, "done", string(a)), "n", "1"), http.StatusSeeOther)
	return nil
}

func (s forms) askBulkPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := onEntries(r)
	if err != nil {
		return err
	}
	return s.askBulk(w, r, p, a, http.StatusOK, r.URL.Query(), nil)
}

// askBulk counts what the filter matches now and asks. problem is why the
// previous answer was not accepted.
func (s forms) askBulk(w http.ResponseWriter, r *http.Request, p person, a ops.Action, status int, q url.Values, problem error) error {
	f, err := filterOf(q.Get, p)
	if err != nil {
		return err
	}
	n, err := s.store().Count(r.Context(), f, ops.MaxBulk)
	if err != nil {
		return err
	}
	l := languageOf(r)
	count := l.entries(n.N)
	if n.More {
		count = l.t("%s entries", l.count(n.N, true))
	}
	v := ask(l, a, l.t("question "+string(a), count))
	q = filterQuery(q)
	for _, name := range filterNames {
		if value := q.Get(name); value != "" {
			v.Hidden = append(v.Hidden, named{name, value})
			if name != "kind" {
				v.Filter = append(v.Filter, named{l.t("filter " + name), value})
			}
		}
	}
	if len(q) == 0 {
		v.Filter = []named{{l.t("Filter"), l.t("none: every entry of the log")}}
	}
	v.Hidden = append(v.Hidden, named{"count", strconv.Itoa(n.N)})
	v.Back = s.cfg.BasePath + "/entries" + suffix(q)
	v.URL = s.cfg.BasePath + "/bulk/" + string(a)
	switch {
	case n.More:
		v.Impossible = l.t("At most 100,000 entries are changed at once: narrow the filter.")
	case n.N == 0:
		v.Impossible = l.t("No entry matches.")
	default:
		if all, ok := s.store().(together); ok {
			names, err := all.spread(r.Context(), f)
			if err != nil {
				return err
			}
			if len(names) > 1 {
				v.Impossible = l.t("These entries are in several logs, which cannot be changed at once. Choose one:")
				for _, name := range names {
					v.Logs = append(v.Logs, named{name, s.logBase(name) + "/bulk/" + string(a) + suffix(q)})
				}
			}
		}
		kinds, err := s.store().Kinds(r.Context(), f)
		if err != nil {
			return err
		}
		v.Kinds = kindViews(l, s.cfg.BasePath, kinds.Kinds, q)
	}
	if problem != nil {
		v.Problem = l.t("Nothing was changed:") + " " + conflictText(l, problem)
	}
	s.render(w, r, p, status, "ask", v)
	return nil
}

// conflictText says why a bulk action was refused.
func conflictText(l *language, err error) string {
	var conflict *ops.ConflictError
	if !errors.As(err, &conflict) {
		return safeLine(err.Error())
	}
	if len(conflict.Logs) > 0 {
		return l.t("the filter matches entries of several logs: choose one.")
	}
	if conflict.Counted == conflict.Matches {
		return l.t("%s of them are being delivered at this moment; try again, or filter by state.", l.number(conflict.Leased))
	}
	return l.t("the filter matched %s when it was counted, and %s now. Look again.", l.number(conflict.Counted), l.number(conflict.Matches))
}

func (s forms) bulkPage(w http.ResponseWriter, r *http.Request, p person) error {
	a, err := onEntries(r)
	if err != nil {
		return err
	}
	field, err := readForm(r)
	if err != nil {
		return err
	}
	f, err := filterOf(field, p)
	if err != nil {
		return err
	}
	n, err := number(field("count"), ops.MaxBulk)
	if err != nil {
		return err
	}
	_, err = s.bulk(r, p, string(a), f, int64(n), field("reason"))
	if errors.Is(err, ops.ErrConflict) {
		return s.askBulk(w, r, p, a, http.StatusConflict, r.PostForm, err)
	}
	if err != nil {
		return err
	}
	to := s.cfg.BasePath + "/entries" + suffix(filterQuery(r.PostForm))
	http.Redirect(w, r, with(with(to, "done", string(a)), "n", strconv.Itoa(n)), http.StatusSeeOther)
	return nil
}

func (s forms) askSourcePage(w http.ResponseWriter, r *http.Request, p person) error {
	a := ops.Action(r.PathValue("action"))
	switch a {
	case ops.Pause, ops.Resume, ops.Limit:
	default:
		return noSuchAction()
	}
	name, err := sourceOf(r)
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := ask(l, a, l.t("question "+string(a), safeLine(name)))
	v.Limit = a == ops.Limit
	v.Back = s.cfg.BasePath + "/"
	v.URL = s.cfg.BasePath + "/data-sources/" + url.PathEscape(name) + "/" + string(a)
	s.render(w, r, p, http.StatusOK, "ask", v)
	return nil
}

func (s forms) sourcePage(w http.ResponseWriter, r *http.Request, p person) error {
	field, err := readForm(r)
	if err != nil {
		return err
	}
	perSecond := int64(-1)
	action := r.PathValue("action")
	if action == string(ops.Limit) {
		n, err := number(field("perSecond"), maxPerSecond)
		if err != nil {
			return err
		}
		perSecond = int64(n)
	}
	if err := s.control(r, p, action, field("reason"), perSecond); err != nil {
		return err
	}
	http.Redirect(w, r, fmt.Sprintf("%s/?done=%s", s.cfg.BasePath, action), http.StatusSeeOther)
	return nil
}
