package console

import (
	"cmp"
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
	kindList
	URL, Back string
	Hidden    []named
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

// ask makes the page before an action. what is the target, to the address of the action.
func ask(l *language, a ops.Action, what, to, back string) askPage {
	return askPage{
		Question: l.t("question "+string(a), what), Meaning: l.t(meanings[a]), Discard: a == ops.Discard, Reason: ops.NeedsReason(a),
		Button: l.t("action " + string(a)), status: http.StatusOK, URL: to, Back: back,
	}
}

func (s *site) askEntryPage(in *input) (any, error) {
	a := in.action(append(onEntries, ops.Amend, ops.Skip)...)
	if a == ops.Amend {
		return s.askAmend(in, nil)
	}
	d, err := s.entry(in, false)
	if err != nil {
		return nil, err
	}
	back := s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v := ask(in.l, a, in.l.t("1 entry"), back+"/"+string(a), back)
	v.Filter = []named{{in.l.t("Entry"), d.ID}, {in.l.t("Data source"), d.DataSource}, {"SQL", oneLine(d.Entry)}}
	if a == ops.Discard && d.Kind != "" {
		v.URL = with(v.URL, "kind", d.Kind)
	}
	return v, nil
}

// askAmend asks for the new text of a statement. problem is why the text in a form was not accepted.
func (s *site) askAmend(in *input, problem *failure) (any, error) {
	d, err := s.entry(in, false)
	if err != nil {
		return nil, err
	}
	n := max(in.statement(), 1)
	if n > len(d.Statements) {
		in.fail(invalid("statement is a number from 1 to %d", len(d.Statements)))
	}
	if in.err != nil {
		return nil, in.err
	}
	back := s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v := ask(in.l, ops.Amend, in.l.t("1 entry"), back+"/amend", back)
	v.Filter = []named{{in.l.t("Entry"), d.ID}, {in.l.t("Data source"), d.DataSource}}
	v.Hidden = []named{{"statement", strconv.Itoa(n)}}
	v.Amends, v.SQL, v.Parameters = true, d.Statements[n-1].SQL, in.said.Get("parameters")
	if in.Role < Reveal {
		v.Impossible = in.l.t("Your role does not allow this.")
	}
	if problem != nil {
		v.SQL, v.Problem, v.status = in.said.Get("sql"), safetext.Lines(in.l.t(problem.text)+" "+in.l.say(problem.detail)), problem.status
	}
	return v, nil
}

// askAmendAll asks for the new text of all counted entries, which may have been typed already.
func (s *site) askAmendAll(in *input, sel *ops.Selection, v *askPage) error {
	v.Meaning = in.l.t("One text is put in the place of the old one, in all of these entries; the audit keeps the old one. The first of them is tried: if it is refused, nothing is changed. They stay parked: retry them afterwards. What may be applied is left as it is.")
	switch {
	case in.Role < Reveal:
		v.Impossible = in.l.t("Your role does not allow this.")
		return nil
	case sel.Filter.Kind == "":
		v.Impossible = in.l.t("Entries are amended by their kind: choose a kind of error.")
		return nil
	}
	d, err := s.store().Entry(in.Context(), sel.IDs[0])
	if err != nil {
		return err
	}
	v.Amends, v.AmendsAll, v.SQL, v.Parameters = true, true, cmp.Or(in.said.Get("sql"), d.Statements[0].SQL), in.said.Get("parameters")
	if n := in.said.Get("statement"); n != "" {
		v.Hidden = append(v.Hidden, named{"statement", n})
	}
	return nil
}

// askCompensatePage asks about the group of a soft transaction.
func (s *site) askCompensatePage(in *input) (any, error) {
	id, base := in.id(), s.cfg.BasePath
	v := ask(in.l, ops.Compensate, safetext.Line(id), base+"/transactions/"+url.PathEscape(id)+"/compensate", base+"/entries/"+url.PathEscape(id))
	v.Discard = true
	return v, in.err
}

func (s *site) askBulkPage(in *input) (any, error) {
	return s.askBulk(in, in.action(append(onEntries, ops.Amend)...), nil)
}

// askBulk counts the current matches of the filter and asks. problem is why the previous answer was
// not accepted.
func (s *site) askBulk(in *input, a ops.Action, problem *failure) (any, error) {
	if a == ops.Amend {
		in.said.Set("state", string(ops.Parked))
	}
	l, f, q := in.l, in.filter(), filterQuery(in.said)
	if in.err != nil {
		return nil, in.err
	}
	sel, err := s.store().Select(in.Context(), f)
	if err != nil {
		return nil, err
	}
	n := len(sel.IDs)
	count := l.entries(n)
	if sel.More {
		count = l.t("%s entries", l.count(ops.MaxBulk, true))
	}
	v := ask(l, a, count, s.cfg.BasePath+"/bulk/"+string(a), s.cfg.BasePath+"/entries"+suffix(q))
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
	switch {
	case sel.More:
		v.Impossible = l.t("At most 100,000 entries are changed at once: narrow the filter.")
	case n == 0 && f.State == ops.Leased:
		v.Impossible = l.t("What is being delivered at this moment cannot be changed.")
	case n == 0:
		v.Impossible = l.t("No entry matches.")
	default:
		kinds, err := s.store().Kinds(in.Context(), f)
		if err != nil {
			return nil, err
		}
		v.kindList = kindViews(l, s.cfg.BasePath, kinds.Kinds, q, maxKinds)
	}
	if a == ops.Amend && v.Impossible == "" {
		if err := s.askAmendAll(in, sel, &v); err != nil {
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

func (s *site) askSourcePage(in *input) (any, error) {
	a, name := in.action(onSources...), s.sourceOf(in.Request)
	v := ask(in.l, a, safetext.Line(name), controlURL(s.cfg.BasePath, name, a), s.cfg.BasePath+"/")
	v.Limit = a == ops.Limit
	return v, in.err
}
