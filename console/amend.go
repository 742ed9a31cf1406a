package console

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// maxAmendment bounds the body of an amendment, which holds a whole statement.
const maxAmendment = 16 << 20

// askAmend asks for the new text of a statement. said is the previous answer, problem why it was
// not accepted.
func (s *site) askAmend(r *http.Request, p person, said field, problem *failure) (any, error) {
	d, err := s.entry(r, p, false)
	if err != nil {
		return nil, err
	}
	n, err := statementOf(said)
	if err != nil {
		return nil, err
	}
	if n = max(n, 1); n > len(d.Statements) {
		return nil, invalid("statement is a number from 1 to %d", len(d.Statements))
	}
	l := languageOf(r)
	v := ask(l, ops.Amend, l.t("1 entry"))
	v.Filter = []named{{l.t("Entry"), d.ID}, {l.t("Data source"), d.DataSource}}
	v.Back = s.cfg.BasePath + "/entries/" + url.PathEscape(d.ID)
	v.URL = v.Back + "/amend"
	v.Hidden = []named{{"statement", strconv.Itoa(n)}}
	v.Amends, v.SQL, v.Parameters = true, d.Statements[n-1].SQL, said("parameters")
	if p.Role < Reveal {
		v.Impossible = l.t("Your role does not allow this.")
	}
	if problem != nil {
		v.SQL, v.Problem, v.status = said("sql"), safetext.Lines(l.t(problem.text)+" "+l.say(problem.detail)), problem.status
	}
	return v, nil
}

// statementOf returns the number of the statement to amend, 0 for the only one.
func statementOf(said field) (int, error) {
	if said("statement") == "" {
		return 0, nil
	}
	return number("statement", said("statement"), 4096)
}

// askAmendAll asks for the new text of all counted entries. typed may hold it already.
func (s *site) askAmendAll(r *http.Request, p person, sel *ops.Selection, typed url.Values, v *askPage) error {
	l := languageOf(r)
	v.Meaning = l.t("One text is put in the place of the old one, in all of these entries; the audit keeps the old one. The first of them is tried: if it is refused, nothing is changed. They stay parked: retry them afterwards. What may be applied is left as it is.")
	switch {
	case p.Role < Reveal:
		v.Impossible = l.t("Your role does not allow this.")
		return nil
	case sel.Filter.Kind == "":
		v.Impossible = l.t("Entries are amended by their kind: choose a kind of error.")
		return nil
	}
	d, err := s.store().Entry(r.Context(), sel.IDs[0])
	if err != nil {
		return err
	}
	v.Amends, v.AmendsAll, v.SQL, v.Parameters = true, true, d.Statements[0].SQL, typed.Get("parameters")
	if sql := typed.Get("sql"); sql != "" {
		v.SQL = sql
	}
	if n := typed.Get("statement"); n != "" {
		v.Hidden = append(v.Hidden, named{"statement", n})
	}
	return nil
}
