package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// A page is the layout around the data of one page.
type page struct {
	Lang, Other *language
	OtherURL    string
	Title       string
	Section     string
	Person      person
	CanOperate  bool
	CanReveal   bool
	// Assets adds scripts, styles and navigation. Only a logged-in user can load them.
	Assets bool
	// Self is the page's own address, for live updates.
	Self string
	// Logs are the links to the other logs.
	Logs []tab
	// Index: it is of no log.
	Index bool
	// Done describes DoneBy, the action just carried out, if any.
	Done   string
	DoneBy ops.Action
	Data   any
}

// tab leads to one of several pages.
type tab struct {
	ID, Name, URL string
	Current       bool
}

// links lead to the same page of each log with such a page.
func (s *site) links(l *language, section string) (all []tab) {
	if len(s.logs) == 0 {
		return nil
	}
	path := map[string]string{"entries": "/entries", "audit": "/audit"}[section]
	all = append(all, tab{"", l.t("all logs"), s.root + "/", s.name == ""})
	for _, one := range s.logs {
		all = append(all, tab{"", safetext.Line(one.name), one.cfg.BasePath + cmp.Or(path, "/"), s.name == one.name})
	}
	return all
}

// errorPage says what was wrong. Again: it gives way to the page once the log answers.
type errorPage struct {
	Text, Detail string
	Again        bool
	status       int
}

// render writes a page. It makes the whole page before sending the first byte, so that a mistake
// gives an error and not half a page.
func (s *site) render(w http.ResponseWriter, r *http.Request, p person, data any) {
	l := languageOf(r)
	v := page{
		Lang: l, Person: p,
		CanOperate: p.Role >= Operate, CanReveal: p.Role >= Reveal, Assets: p.Role > 0,
		Self: s.selfOf(r), Data: data,
	}
	v.Other = languages[0]
	if l == v.Other {
		v.Other = languages[1]
	}
	v.OtherURL = with(v.Self, "lang", v.Other.Tag)
	name, status := "", http.StatusOK
	switch d := data.(type) {
	case overviewView:
		name, v.Title = "overview", l.t("Overview")
	case entriesView:
		name, v.Title = "entries", l.t("Log")
	case auditView:
		name, v.Title = "audit", l.t("Audit")
	case []logView:
		name, v.Title = "logs", l.t("Logs")
	case entryView:
		name, v.Title = "entry", l.t("Entry")+" "+d.D.ID
	case askPage:
		name, v.Title, status = "ask", d.Question, d.status
	case errorPage:
		name, v.Title, status = "error", l.t(d.Text), d.status
	}
	v.Section = cmp.Or(map[string]string{"entry": "entries"}[name], name)
	keepLanguage(w, r, s.root)
	v.Logs, v.Index = s.links(l, v.Section), len(s.logs) > 0 && s.name == ""
	v.Done, v.DoneBy = s.doneText(l, r, p)
	if d, ok := data.(entryView); ok && v.DoneBy == ops.Retry && d.D.State == ops.Parked {
		v.Done = "" // it was parked again, as the page says
	}
	var b bytes.Buffer
	if err := l.templates(s.cfg.BasePath, name).ExecuteTemplate(&b, "layout", v); err != nil {
		s.log.WithError(err).Error("the console could not write a page")
		plain(http.StatusInternalServerError, "The page could not be written.")(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Language, Cookie")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w)
}

// selfOf returns the address of the requested page, to load it again.
func (s *site) selfOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if r.Method == http.MethodPost {
		if parts := strings.Split(path, "/"); len(parts) > 3 && parts[1] == "entries" {
			path = strings.Join(parts[:3], "/")
		}
		return s.cfg.BasePath + path
	}
	q := r.URL.Query()
	for _, gone := range []string{"lang", "done", "kinds"} {
		q.Del(gone)
	}
	return s.cfg.BasePath + path + suffix(q)
}

// with is an address with one more parameter.
func with(address, name, value string) string {
	sep := "?"
	if strings.Contains(address, "?") {
		sep = "&"
	}
	return address + sep + name + "=" + url.QueryEscape(value)
}

func funcs(l *language, base string) template.FuncMap {
	return template.FuncMap{
		"t": l.t, "say": l.say,
		"at":      func(path string) string { return base + path },
		"asset":   func(name string) string { return base + "/assets/" + name + "?v=" + version },
		"entry":   func(id string) string { return base + "/entries/" + url.PathEscape(id) },
		"list":    func(name, value string) string { return base + "/entries?" + name + "=" + url.QueryEscape(value) },
		"control": func(name string, a ops.Action) string { return controlURL(base, name, a) },
		"state":   func(s ops.State) string { return l.t("state " + string(s)) },
		"action": func(a ops.Action) string {
			if _, ok := l.texts["action "+string(a)]; ok {
				return l.t("action " + string(a))
			}
			return safetext.Line(string(a))
		},
		"role":    func(p person) string { return l.t("role " + p.Role.String()) },
		"verdict": func(d *ops.Detail) string { return l.t(verdicts[d.Verdict]) },
		"what":    l.what, "n": l.number, "rate": rate, "when": when, "age": l.age,
		"safe": safetext.Line, "lines": safetext.Lines, "oneline": oneLine, "value": valueText,
		"brief": func(err string) string { return clip(err, 240) },
		"inc":   func(i int) int { return i + 1 },
		"deref": func(v any) any { return reflect.Indirect(reflect.ValueOf(v)).Interface() },
	}
}

// verdicts are the store's in words.
var verdicts = map[string]string{
	"applied":       "Yes, by its receipt: to discard it is safe, to retry only removes it.",
	"notApplied":    "No: a retry applies it once; discarding gives it up.",
	"neverApplied":  "No, and it never will be: discard it, and do the work anew if it is still wanted.",
	"cannotTell":    "Unknown.",
	"unreachable":   "Unknown at the moment.",
	"notConfigured": "Unknown.",
}

// record is a record of the audit; empty for none.
func (s *site) record(ctx context.Context, id string) (ops.Record, error) {
	if id == "" || !ops.IsID(id+"~") {
		return ops.Record{}, nil
	}
	audit, err := s.store().Audit(ctx, ops.Page{After: id + "~", Limit: 1})
	if err != nil || len(audit.Records) == 0 || audit.Records[0].ID != id {
		return ops.Record{}, err
	}
	return audit.Records[0], nil
}

// doneText describes the preceding action from its audit record, and returns the action.
func (s *site) doneText(l *language, r *http.Request, p person) (string, ops.Action) {
	if p.Role < Read || s.store() == nil {
		return "", ""
	}
	record, err := s.record(r.Context(), r.URL.Query().Get("done"))
	if err != nil || record.ID == "" {
		return "", ""
	}
	text := l.t(doneTexts[record.Action])
	re, amended := ops.ReplacedBy(record)
	if amended = amended && re.Bulk != nil; amended {
		text = l.t("%s amended. They are still parked: retry them.")
	}
	if amended || slices.Contains(onEntries, record.Action) {
		text = fmt.Sprintf(text, l.entries(record.Count))
		var did struct{ Gone, Left int }
		_ = json.Unmarshal([]byte(record.What), &did) // of one entry it is the id
		if did.Gone > 0 {
			text += " " + l.t("%s gone: delivered or discarded since they were counted.", l.entries(did.Gone))
		}
		if did.Left > 0 {
			text += " " + l.t("%s left alone: being delivered, or changed so that the filter does not match.", l.entries(did.Left))
		}
	}
	return text, record.Action
}

var doneTexts = map[ops.Action]string{
	ops.Retry: "%s made due now.", ops.Park: "%s parked.", ops.Discard: "%s discarded.", ops.Skip: "The entry is skipped and parked: those behind it are delivered.", ops.Compensate: "The group's compensation has started: the job continues it.", ops.Amend: "The entry is amended. It is still parked: retry it.",
	ops.Pause: "The data source is paused.", ops.Resume: "The data source is resumed.", ops.Limit: "The limit is set.",
}

// what describes the subject of an audit record: a filter in words.
func (l *language) what(r ops.Record) string {
	var f map[string]any
	if re, ok := ops.ReplacedBy(r); ok && re.Bulk != nil {
		_ = json.Unmarshal([]byte(r.What), &f)
		return safetext.Line(l.conditions(f)) + " · " + l.t("was: %s %s", clip(re.Old.SQL, 500), "") + " · " + l.t("is: %s %s", clip(re.New.SQL, 500), "")
	} else if ok {
		return l.t("%s, statement %d", safetext.Line(re.Entry), re.Statement) + " · " + l.t("was: %s %s", clip(re.Old.SQL, 500), clip(string(re.Old.Parameters), 500)) +
			" · " + l.t("is: %s %s", clip(re.New.SQL, 500), clip(string(re.New.Parameters), 500))
	}
	if json.Unmarshal([]byte(r.What), &f) != nil {
		return safetext.Line(r.What)
	}
	return safetext.Line(l.conditions(f))
}

// conditions are a filter of the audit in words.
func (l *language) conditions(f map[string]any) string {
	var parts []string
	for _, n := range l.filter(func(name string) string { v, _ := f[name].(string); return v }) {
		parts = append(parts, n.Name+": "+n.Value)
	}
	return strings.Join(parts, " · ")
}

func (l *language) filter(said func(name string) string) (words []named) {
	for _, name := range filterNames {
		value := said(name)
		if value == "" {
			continue
		}
		if name == "state" {
			value = l.t("state " + value)
		}
		words = append(words, named{l.t("filter " + name), value})
	}
	if len(words) == 0 {
		words = []named{{l.t("Filter"), l.t("none: every entry of the log")}}
	}
	return words
}

// kind is a kind of error in words; empty for none.
func (l *language) kind(key string) string {
	text, source, err := ops.KindText(key)
	if err != nil {
		return ""
	}
	return clip(text, 200) + " " + l.t("on %s", safetext.Line(source))
}

// oneLine is the beginning of an entry's SQL.
func oneLine(e ops.Entry) string {
	if len(e.Statements) == 0 {
		return ""
	}
	text := clip(e.Statements[0].SQL, 160)
	if more := len(e.Statements) - 1; more > 0 {
		text += fmt.Sprintf(" (+%d)", more)
	}
	return text
}

func clip(s string, n int) string {
	if len(s) > 8*n {
		s = strings.ToValidUTF8(s[:8*n], "")
	}
	return safetext.Cut(safetext.Line(strings.Join(strings.Fields(s), " ")), n)
}

// valueText is a parameter's value, or a mask.
func valueText(p ops.Parameter) string {
	switch {
	case p.Type == "null":
		return "NULL"
	case p.Value == nil:
		return "••••"
	case p.Encoding != "":
		return p.Encoding + " " + safetext.Line(fmt.Sprint(p.Value))
	}
	return safetext.Lines(fmt.Sprint(p.Value))
}
