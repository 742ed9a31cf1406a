package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/ops"
)

// entryView is one entry as the page shows it.
type entryView struct {
	D *ops.Detail
	// Statements are those of D, laid out.
	Statements []statementView
	NextText   string
	// NextAt: when it happens follows.
	NextAt    bool
	Trial     *ops.Trial
	TrialText string
	// Live: it follows what happens to the entry.
	Live bool
	base string
}

type statementView struct {
	SQL string
	// Text is the SQL laid out; Laid: it differs.
	Text       string
	Laid       bool
	Parameters []ops.Parameter
}

// Next leads to the next entry with the same kind of error.
func (v entryView) Next() string { return with(v.URL("next"), "kind", v.D.Kind) }

// OfKind leads to the entries with the same kind of error.
func (v entryView) OfKind() string { return with(v.base+"/entries", "kind", v.D.Kind) }

// URL leads to an action on the entry.
func (v entryView) URL(action string) string {
	return v.base + "/entries/" + url.PathEscape(v.D.ID) + "/" + action
}

func (s pages) viewOf(l *language, d *ops.Detail) entryView {
	v := entryView{D: d, NextText: l.t(ops.NextTexts[d.NextIs]), NextAt: d.NextIs == ops.NextLease || d.NextIs == ops.NextLater, Live: !d.Revealed, base: s.cfg.BasePath}
	for i, s := range d.Statements {
		sql, laid := layOut(s.SQL)
		one := statementView{SQL: s.SQL, Text: sql, Laid: laid, Parameters: s.Parameters}
		if d.Unit != nil && !d.Revealed { // everybody sees the types, as on the command line, but no value
			one.Parameters, _ = ops.Parameters(d.Unit.Statements[i], false)
		}
		v.Statements = append(v.Statements, one)
	}
	return v
}

func (s pages) entryPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	s.render(w, r, p, http.StatusOK, s.viewOf(languageOf(r), d))
	return nil
}

func (s pages) revealPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.revealed(r, p)
	if err != nil {
		return err
	}
	s.render(w, r, p, http.StatusOK, s.viewOf(languageOf(r), d))
	return nil
}

func (s pages) tryPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	t, err := s.try(r, p, "")
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := s.viewOf(l, d)
	v.Trial, v.TrialText, v.Live = t, trialText(l, t), false
	s.render(w, r, p, http.StatusOK, v)
	return nil
}

// trialText says what each statement would change.
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
