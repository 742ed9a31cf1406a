package console

import (
	"net/http"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

// overviewAnswer is the overview with the sum of its rates.
type overviewAnswer struct {
	*ops.Overview
	Funnel ops.Funnel `json:"funnel"`
}

func (s api) overviewCall(w http.ResponseWriter, r *http.Request, _ person) error {
	q, err := queryOf(r, "hours")
	if err != nil {
		return err
	}
	hours := 0
	if text := q.Get("hours"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil && n == 0 {
			return badRequest("hours is a number from 0 to 168.", "")
		}
		hours = int(min(n, 168))
	}
	o, err := s.store().Overview(r.Context(), ops.OverviewOptions{Hours: hours})
	if err != nil {
		return err
	}
	o.DataSources, o.Jobs, o.Minutes = some(o.DataSources), some(o.Jobs), some(o.Minutes)
	writeJSON(w, http.StatusOK, overviewAnswer{o, total(o)})
	return nil
}

// some is list, and never null in JSON.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func total(o *ops.Overview) (f ops.Funnel) {
	for _, ds := range o.DataSources {
		f = plus(f, ds.Rates)
	}
	return f
}

func plus(a, b ops.Funnel) ops.Funnel {
	return ops.Funnel{
		AtOnce: a.AtOnce + b.AtOnce, SyncRetry: a.SyncRetry + b.SyncRetry, Job: a.Job + b.Job,
		Pending: a.Pending + b.Pending, Parked: a.Parked + b.Parked, Refused: a.Refused + b.Refused,
	}
}

func (s api) entriesCall(w http.ResponseWriter, r *http.Request, p person) error {
	q, err := queryOf(r, append([]string{"after", "limit"}, filterNames...)...)
	if err != nil {
		return err
	}
	f, err := filterOf(q.Get, p)
	if err != nil {
		return err
	}
	page, err := pageOf(q, apiPage)
	if err != nil {
		return err
	}
	list, err := s.store().Entries(r.Context(), f, page)
	if err != nil {
		return err
	}
	list.Entries = some(list.Entries)
	writeJSON(w, http.StatusOK, list)
	return nil
}

// filterCall reads the filter of a call that takes nothing else.
func filterCall(r *http.Request, p person) (ops.Filter, error) {
	q, err := queryOf(r, filterNames...)
	if err != nil {
		return ops.Filter{}, err
	}
	return filterOf(q.Get, p)
}

func (s api) countCall(w http.ResponseWriter, r *http.Request, p person) error {
	f, err := filterCall(r, p)
	if err != nil {
		return err
	}
	n, err := s.store().Count(r.Context(), f, -1)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, n)
	return nil
}

func (s api) kindsCall(w http.ResponseWriter, r *http.Request, p person) error {
	f, err := filterCall(r, p)
	if err != nil {
		return err
	}
	kinds, err := s.store().Kinds(r.Context(), f)
	if err != nil {
		return err
	}
	kinds.Kinds = some(kinds.Kinds)
	writeJSON(w, http.StatusOK, kinds)
	return nil
}

// entryAnswer is an entry whose statements have their parameters when they are
// revealed.
type entryAnswer struct {
	*ops.Detail
	Statements []statementAnswer `json:"statements"`
	Revealed   bool              `json:"revealed"`
}

type statementAnswer struct {
	ops.Statement
	Parameters *[]ops.Parameter `json:"parameters,omitempty"`
}

func (s api) entryCall(w http.ResponseWriter, r *http.Request, p person) error {
	if _, err := queryOf(r, "reveal"); err != nil {
		return err
	}
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	a := entryAnswer{Detail: d, Statements: make([]statementAnswer, len(d.Statements))}
	for i, s := range d.Statements {
		a.Statements[i].Statement = s
	}
	if wantsValues(r) {
		v, err := s.store().Reveal(r.Context(), d.ID, p.by(""))
		if err != nil {
			return err
		}
		a.Revealed = true
		d.LastError, d.Attempts = v.LastError, v.Attempts
		for i := range a.Statements {
			params := []ops.Parameter{}
			if i < len(v.Parameters) {
				params = some(v.Parameters[i])
			}
			a.Statements[i].Parameters = &params
		}
	}
	d.Attempts, d.Siblings = some(d.Attempts), some(d.Siblings)
	writeJSON(w, http.StatusOK, a)
	return nil
}

// decision is the body of an action.
type decision struct {
	Reason    string `json:"reason"`
	PerSecond whole  `json:"perSecond"`
}

// trialAnswer is a trial with its 64-bit numbers as text.
type trialAnswer struct {
	*ops.Trial
	Rows       []string `json:"rows"`
	TookMillis string   `json:"tookMillis"`
}

func trialOf(t *ops.Trial) trialAnswer {
	t.Notes = some(t.Notes)
	a := trialAnswer{Trial: t, Rows: make([]string, len(t.Rows)), TookMillis: strconv.FormatInt(t.Took.Milliseconds(), 10)}
	for i, n := range t.Rows {
		a.Rows[i] = strconv.FormatInt(n, 10)
	}
	return a
}

func (s api) actCall(w http.ResponseWriter, r *http.Request, p person) error {
	a := ops.Action(r.PathValue("action"))
	switch a {
	case ops.Retry, ops.Park, ops.Discard, ops.Try:
	default:
		return noSuchAction()
	}
	var body struct {
		Reason string `json:"reason"`
	}
	if err := readJSON(r, &body); err != nil {
		return err
	}
	reason, err := reasonFor(a, body.Reason)
	if err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	if a == ops.Try {
		t, err := s.store().Try(r.Context(), id, p.by(reason))
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, trialOf(t))
		return nil
	}
	if err := s.store().Act(r.Context(), a, id, p.by(reason)); err != nil {
		return err
	}
	s.events.changed()
	writeJSON(w, http.StatusOK, done{a, 1})
	return nil
}

func (s api) bulkCall(w http.ResponseWriter, r *http.Request, p person) error {
	var body struct {
		Filter *struct {
			DataSource  string `json:"dataSource"`
			State       string `json:"state"`
			Text        string `json:"text"`
			Transaction string `json:"transaction"`
			OlderThan   string `json:"olderThan"`
			Kind        string `json:"kind"`
		} `json:"filter"`
		Action string `json:"action"`
		Count  whole  `json:"count"`
		Reason string `json:"reason"`
	}
	if err := readJSON(r, &body); err != nil {
		return err
	}
	if body.Filter == nil {
		return badRequest("The body has no filter; an empty one matches everything.", "")
	}
	fields := map[string]string{
		"dataSource": body.Filter.DataSource, "state": body.Filter.State, "text": body.Filter.Text,
		"transaction": body.Filter.Transaction, "olderThan": body.Filter.OlderThan, "kind": body.Filter.Kind,
	}
	f, err := filterOf(func(name string) string { return fields[name] }, p)
	if err != nil {
		return err
	}
	if !body.Count.given || body.Count.n < 0 {
		return badRequest("count says how many entries the filter is to match.", "")
	}
	n, err := s.bulk(r, p, body.Action, f, body.Count.n, body.Reason)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, n)
	return nil
}

func (s api) sourceCall(w http.ResponseWriter, r *http.Request, p person) error {
	var body decision
	if err := readJSON(r, &body); err != nil {
		return err
	}
	perSecond := int64(-1)
	if body.PerSecond.given {
		perSecond = body.PerSecond.n
	}
	if err := s.control(r, p, r.PathValue("action"), body.Reason, perSecond); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done{ops.Action(r.PathValue("action")), 1})
	return nil
}

func (s api) auditCall(w http.ResponseWriter, r *http.Request, _ person) error {
	q, err := queryOf(r, "after", "limit")
	if err != nil {
		return err
	}
	page, err := pageOf(q, apiPage)
	if err != nil {
		return err
	}
	a, err := s.store().Audit(r.Context(), page)
	if err != nil {
		return err
	}
	a.Records = some(a.Records)
	writeJSON(w, http.StatusOK, a)
	return nil
}
