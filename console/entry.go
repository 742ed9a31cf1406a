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
	D         *ops.Detail
	LastError string
	Attempts  []ops.Attempt
	// Statements are those of D, laid out.
	Statements []statementView
	NextText   string
	// NextAt: when it happens follows.
	NextAt    bool
	Revealed  bool
	Trial     *ops.Trial
	TrialText string
	// Live: it follows what becomes of the entry.
	Live bool
	base string
}

type statementView struct {
	SQL        string
	Pieces     []piece
	Laid       bool
	Parameters []ops.Parameter
}

// URL leads to an action on the entry.
func (v entryView) URL(action string) string {
	return v.base + "/entries/" + url.PathEscape(v.D.ID) + "/" + action
}

func (s pages) viewOf(l *language, d *ops.Detail) entryView {
	v := entryView{D: d, LastError: d.LastError, Attempts: d.Attempts, NextText: nextText(l, d), NextAt: timed[d.NextIs], Live: true, base: s.cfg.BasePath}
	for _, s := range d.Statements {
		pieces, laid := layOut(s.SQL)
		v.Statements = append(v.Statements, statementView{SQL: s.SQL, Pieces: pieces, Laid: laid})
	}
	// Everybody sees the types, as on the command line, but no value.
	if d.Unit != nil {
		for i, s := range d.Unit.Statements {
			if params, err := ops.Parameters(s, false); err == nil && i < len(v.Statements) {
				v.Statements[i].Parameters = params
			}
		}
	}
	return v
}

// nextText says what happens next.
func nextText(l *language, d *ops.Detail) string {
	if text, ok := nexts[d.NextIs]; ok {
		return l.t(text)
	}
	return safeLine(d.Next)
}

// nexts say what happens next; those in timed are followed by the time.
var (
	nexts = map[ops.Next]string{
		ops.NextOperator:  "Nothing, until an operator decides.",
		ops.NextLease:     "Its owner is delivering it; if that one is gone, the job takes it over at",
		ops.NextResume:    "Nothing, until its data source is resumed.",
		ops.NextJob:       "Nothing, until a job runs.",
		ops.NextReachable: "The job delivers it once its data source is reachable.",
		ops.NextRound:     "The job delivers it in its next round.",
		ops.NextLater:     "The job delivers it at",
	}
	timed = map[ops.Next]bool{ops.NextLease: true, ops.NextLater: true}
)

func (s pages) entryPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	s.render(w, r, p, http.StatusOK, "entry", s.viewOf(languageOf(r), d))
	return nil
}

func (s pages) revealPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	values, err := s.store().Reveal(r.Context(), d.ID, p.by(""))
	if err != nil {
		return err
	}
	v := s.viewOf(languageOf(r), d)
	v.Revealed, v.Live, v.LastError, v.Attempts = true, false, values.LastError, values.Attempts
	for i := range v.Statements {
		if i < len(values.Parameters) {
			v.Statements[i].Parameters = values.Parameters[i]
		}
	}
	s.render(w, r, p, http.StatusOK, "entry", v)
	return nil
}

func (s pages) tryPage(w http.ResponseWriter, r *http.Request, p person) error {
	d, err := s.entryOf(r)
	if err != nil {
		return err
	}
	t, err := s.store().Try(r.Context(), d.ID, p.by(""))
	if err != nil {
		return err
	}
	l := languageOf(r)
	v := s.viewOf(l, d)
	v.Trial, v.TrialText, v.Live = t, trialText(l, t), false
	s.render(w, r, p, http.StatusOK, "entry", v)
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
