package console

import (
	"net/http"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

func (s *site) overviewCall(r *http.Request, _ person) (any, error) {
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

func (s *site) entriesCall(r *http.Request, p person) (any, error) {
	q, err := queryOf(r, append([]string{"after", "limit", "order"}, filterNames...)...)
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

// filterCall reads the filter of a call without other arguments.
func filterCall(r *http.Request, p person) (ops.Filter, error) {
	q, err := queryOf(r, filterNames...)
	if err != nil {
		return ops.Filter{}, err
	}
	return filterOf(q.Get, p)
}

// countAnswer is a number of entries. Until identifies them for a bulk action; empty if no such
// action is possible.
type countAnswer struct {
	ops.Count
	Until string `json:"until,omitempty"`
}

func (s *site) countCall(r *http.Request, p person) (any, error) {
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

func (s *site) kindsCall(r *http.Request, p person) (any, error) {
	f, err := filterCall(r, p)
	if err != nil {
		return nil, err
	}
	return s.store().Kinds(r.Context(), f)
}

func (s *site) entryCall(r *http.Request, p person) (any, error) {
	if _, err := queryOf(r, "reveal"); err != nil {
		return nil, err
	}
	return s.entry(r, p, wantsValues(r))
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

func (s *site) auditCall(r *http.Request, p person) (any, error) {
	q, err := queryOf(r, "after", "limit", "reveal")
	if err != nil {
		return nil, err
	}
	page, err := pageOf(q, apiPage)
	if err != nil {
		return nil, err
	}
	return s.audit(r, p, page)
}
