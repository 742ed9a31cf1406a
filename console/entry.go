package console

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/ops"
)

type entryView struct {
	D          *ops.Detail
	Statements []ops.Statement
	NextText   string
	// NextAt: when it happens follows.
	NextAt    bool
	Trial     *ops.Trial
	TrialText string
	// Live makes the page follow the entry.
	Live bool
	base string
}

// Next leads to the next entry with the same kind of error.
func (v entryView) Next() string { return with(v.URL("next"), "kind", v.D.Kind) }

// Amend leads to the form for a statement, from 0.
func (v entryView) Amend(i int) string { return with(v.URL("amend"), "statement", strconv.Itoa(i+1)) }

// Compensate leads to the form for compensating its group.
func (v entryView) Compensate() string {
	return v.base + "/transactions/" + url.PathEscape(v.D.TransactionID) + "/compensate"
}

func (v entryView) GroupText() string { return ops.GroupTexts[v.D.Group] }

// URL leads to an action on the entry.
func (v entryView) URL(action string) string {
	return v.base + "/entries/" + url.PathEscape(v.D.ID) + "/" + action
}

func (s *site) viewOf(l *language, d *ops.Detail) entryView {
	v := entryView{D: d, NextText: l.t(ops.NextTexts[d.NextIs]), NextAt: d.NextIs == ops.NextLease || d.NextIs == ops.NextLater, Live: !d.Revealed, base: s.cfg.BasePath}
	for i, s := range d.Statements {
		if d.Unit != nil && !d.Revealed { // everybody sees the types, as on the command line, but no value
			s.Parameters, _ = ops.Parameters(d.Unit.Statements[i], false)
		}
		v.Statements = append(v.Statements, s)
	}
	return v
}

// entryPage shows the entry, values: with its values.
func (s *site) entryPage(values bool) func(*input) (any, error) {
	return func(in *input) (any, error) {
		d, err := s.entry(in, values)
		if err != nil {
			return nil, err
		}
		return s.viewOf(in.l, d), nil
	}
}

func trialText(l *language, t *ops.Trial) string {
	var parts []string
	for _, n := range t.Rows {
		switch n {
		case -1:
			parts = append(parts, l.t("would succeed; the database does not say how many rows it would change"))
		case 1:
			parts = append(parts, l.t("would change 1 row"))
		default:
			parts = append(parts, l.t("would change %s rows", strconv.FormatInt(n, 10)))
		}
	}
	return strings.Join(parts, "; ")
}
