package console

import (
	"strconv"

	"github.com/bedsql/bed/internal/ops"
)

func (s *site) overviewCall(in *input) (any, error) {
	in.query("hours")
	hours, err := strconv.ParseUint(in.said.Get("hours"), 10, 64)
	if err != nil && hours == 0 && in.said.Get("hours") != "" {
		in.fail(invalid("hours is a number from 0 to 168"))
	}
	if in.err != nil {
		return nil, in.err
	}
	return s.store().Overview(in.Context(), ops.OverviewOptions{Hours: int(min(hours, 168))})
}

func (s *site) entriesCall(in *input) (any, error) {
	in.query(append([]string{"after", "limit", "order"}, filterNames...)...)
	f, page := in.filter(), in.page(apiPage)
	if in.err != nil {
		return nil, in.err
	}
	return s.store().Entries(in.Context(), f, page)
}

// countAnswer is a number of entries. Until identifies them for a bulk action; empty if no such
// action is possible.
type countAnswer struct {
	ops.Count
	Until string `json:"until,omitempty"`
}

func (s *site) countCall(in *input) (any, error) {
	in.query(filterNames...)
	f := in.filter()
	if in.err != nil {
		return nil, in.err
	}
	if f.State != ops.Leased {
		sel, err := s.store().Select(in.Context(), f)
		if err != nil {
			return nil, err
		}
		if !sel.More {
			return countAnswer{ops.Count{N: len(sel.IDs)}, s.counted.keep(sel)}, nil
		}
	}
	n, err := s.store().Count(in.Context(), f, -1)
	return countAnswer{Count: n}, err
}

func (s *site) kindsCall(in *input) (any, error) {
	in.query(filterNames...)
	f := in.filter()
	if in.err != nil {
		return nil, in.err
	}
	return s.store().Kinds(in.Context(), f)
}

func (s *site) entryCall(in *input) (any, error) {
	in.query("reveal")
	return s.entry(in, wantsValues(in.Request))
}

// trialAnswer is a trial with its 64-bit numbers as text.
type trialAnswer struct {
	*ops.Trial
	Rows       []string `json:"rows"`
	TookMillis string   `json:"tookMillis"`
}

func trialOf(t *ops.Trial) *trialAnswer {
	a := &trialAnswer{Trial: t, Rows: make([]string, len(t.Rows)), TookMillis: strconv.FormatInt(t.Took.Milliseconds(), 10)}
	for i, n := range t.Rows {
		a.Rows[i] = strconv.FormatInt(n, 10)
	}
	return a
}

func (s *site) auditCall(in *input) (any, error) {
	in.query("after", "limit", "reveal")
	return s.audit(in, in.page(apiPage))
}
