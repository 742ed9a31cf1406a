package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

func (s api) overviewCall(r *http.Request, _ person) (any, error) {
	q, err := queryOf(r, "hours")
	if err != nil {
		return nil, err
	}
	hours := uint64(0)
	if text := q.Get("hours"); text != "" {
		if hours, err = strconv.ParseUint(text, 10, 64); err != nil && hours == 0 {
			return nil, invalid("hours is a number from 0 to 168")
		}
	}
	return s.store().Overview(r.Context(), ops.OverviewOptions{Hours: int(min(hours, 168))})
}

func (s api) entriesCall(r *http.Request, p person) (any, error) {
	q, err := queryOf(r, append([]string{"after", "limit"}, filterNames...)...)
	if err != nil {
		return nil, err
	}
	f, err := filterOf(q.Get, p)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(q, apiPage)
	if err != nil {
		return nil, err
	}
	return s.store().Entries(r.Context(), f, page)
}

// filterCall reads the filter of a call that takes nothing else.
func filterCall(r *http.Request, p person) (ops.Filter, error) {
	q, err := queryOf(r, filterNames...)
	if err != nil {
		return ops.Filter{}, err
	}
	return filterOf(q.Get, p)
}

// countAnswer is a number of entries. Until is for a bulk action on exactly these;
// empty if none can be done on them.
type countAnswer struct {
	ops.Count
	Until string `json:"until,omitempty"`
}

func (s api) countCall(r *http.Request, p person) (any, error) {
	f, err := filterCall(r, p)
	if err != nil {
		return nil, err
	}
	if f.State != ops.Leased {
		sel, err := s.store().Select(r.Context(), f)
		if err != nil {
			return nil, err
		}
		if !sel.More {
			return countAnswer{ops.Count{N: len(sel.IDs)}, s.counted.keep(sel)}, nil
		}
	}
	n, err := s.store().Count(r.Context(), f, -1)
	return countAnswer{Count: n}, err
}

func (s api) kindsCall(r *http.Request, p person) (any, error) {
	f, err := filterCall(r, p)
	if err != nil {
		return nil, err
	}
	return s.store().Kinds(r.Context(), f)
}

func (s api) entryCall(r *http.Request, p person) (any, error) {
	if _, err := queryOf(r, "reveal"); err != nil {
		return nil, err
	}
	if wantsValues(r) {
		return s.revealed(r, p)
	}
	return s.entryOf(r)
}

// trialAnswer is a trial with its 64-bit numbers as text.
type trialAnswer struct {
	*ops.Trial
	Rows       []string `json:"rows"`
	TookMillis string   `json:"tookMillis"`
}

func trialOf(t *ops.Trial) trialAnswer {
	a := trialAnswer{Trial: t, Rows: make([]string, len(t.Rows)), TookMillis: strconv.FormatInt(t.Took.Milliseconds(), 10)}
	for i, n := range t.Rows {
		a.Rows[i] = strconv.FormatInt(n, 10)
	}
	return a
}

func (s api) actCall(r *http.Request, p person) (any, error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := readJSON(r, &body); err != nil {
		return nil, err
	}
	name := r.PathValue("action")
	if name == string(ops.Try) {
		t, err := s.try(r, p, body.Reason)
		if err != nil {
			return nil, err
		}
		return trialOf(t), nil
	}
	a, err := actionOf(name, onEntries)
	if err != nil {
		return nil, err
	}
	_, err = s.act(r, p, a, body.Reason)
	return done{Action: a, Count: 1}, err
}

func (s api) bulkCall(r *http.Request, p person) (any, error) {
	var body struct {
		Filter map[string]string `json:"filter"`
		Action string            `json:"action"`
		Count  json.Number       `json:"count"`
		Until  string            `json:"until"`
		Reason string            `json:"reason"`
	}
	if err := readJSON(r, &body); err != nil {
		return nil, err
	}
	if body.Filter == nil {
		return nil, invalid("the body has no filter; an empty one matches everything")
	}
	for name := range body.Filter {
		if !slices.Contains(filterNames, name) {
			return nil, unknown(name, filterNames)
		}
	}
	a, err := actionOf(body.Action, onEntries)
	if err != nil {
		return nil, err
	}
	said := body.Filter
	said["count"], said["until"], said["reason"] = body.Count.String(), body.Until, body.Reason
	d, _, err := s.bulk(r, p, a, func(name string) string { return said[name] })
	return d, err
}

func (s api) sourceCall(r *http.Request, p person) (any, error) {
	var body struct {
		Reason    string      `json:"reason"`
		PerSecond json.Number `json:"perSecond"`
	}
	if err := readJSON(r, &body); err != nil {
		return nil, err
	}
	said := map[string]string{"reason": body.Reason, "perSecond": body.PerSecond.String()}
	a, err := s.control(r, p, func(name string) string { return said[name] })
	return done{Action: a, Count: 1}, err
}

func (s api) auditCall(r *http.Request, _ person) (any, error) {
	q, err := queryOf(r, "after", "limit")
	if err != nil {
		return nil, err
	}
	page, err := pageOf(q, apiPage)
	if err != nil {
		return nil, err
	}
	return s.store().Audit(r.Context(), page)
}
