package console

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/bedsql/bed/internal/ops"
)

// A page is what the layout shows around the data of one page.
type page struct {
	Lang       *language
	OtherLang  otherLanguage
	Title      string
	Section    string
	Person     shownPerson
	CanOperate bool
	CanReveal  bool
	// Assets: scripts, styles and navigation, which only somebody who is logged in can load.
	Assets     bool
	HtmxConfig string
	// Self is the page's own address, for live updates.
	Self string
	// Logs are where the others of several logs are.
	Logs []logLink
	// Done says what was just done; empty for nothing.
	Done string
	Data any
}

// logLink leads to one of several logs, or to all of them together.
type logLink struct {
	Name, URL string
	Current   bool
}

// links lead to the same page of each log that has it.
func (s *site) links(l *language, section string) (all []logLink) {
	if len(s.logs) == 0 {
		return nil
	}
	path := map[string]string{"entries": "/entries", "audit": "/audit"}[section]
	if path == "" {
		path = "/"
	}
	all = append(all, logLink{l.t("all logs"), s.root + path, s.name == ""})
	for _, name := range s.logs {
		all = append(all, logLink{safeLine(name), s.pathOf(name) + path, s.name == name})
	}
	return all
}

// logBase is where the site of one of several logs begins.
func (s *site) logBase(name string) string {
	if name == "" || s.name != "" {
		return s.cfg.BasePath
	}
	return s.pathOf(name)
}

// pathOf is below which path one of several logs has its site.
func (s *site) pathOf(name string) string { return s.root + "/logs/" + url.PathEscape(name) }

type shownPerson struct {
	Name string
	Role Role
}

type otherLanguage struct{ Tag, Name, URL string }

type errorPage struct{ Text, Detail string }

// htmx may neither evaluate text nor write styles, which the policy would refuse.
const htmxConfig = `{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyEnabled":false,"allowScriptTags":false,"defaultSettleDelay":0,"timeout":15000}`

// titles are the pages' by their templates; entry and ask have their own.
var titles = map[string]string{"overview": "Overview", "entries": "Log", "audit": "Audit", "entry": "Entry", "error": "Error", "ask": "Confirm"}

// render writes a page. It is made whole before the first byte leaves, so that a
// mistake in it gives an error and not half a page.
func (s *site) render(w http.ResponseWriter, r *http.Request, p person, status int, name string, data any) {
	l := languageOf(r)
	v := page{
		Lang: l, Title: l.t(titles[name]), Section: name, Person: shownPerson{p.name, p.role},
		CanOperate: p.role >= Operate, CanReveal: p.role >= Reveal, Assets: p.role > 0,
		HtmxConfig: htmxConfig, Self: s.selfOf(r), Data: data,
	}
	other := l.other()
	v.OtherLang = otherLanguage{other.Tag, other.Name, with(v.Self, "lang", other.Tag)}
	switch d := data.(type) {
	case askPage:
		v.Title, v.Section = d.Question, ""
	case entryView:
		v.Title, v.Section = l.t("Entry")+" "+d.D.ID, "entries"
	case errorPage:
		v.Title = l.t(d.Text)
	}
	keepLanguage(w, r, s.root)
	v.Logs = s.links(l, v.Section)
	v.Done = l.doneText(r.URL.Query())
	var b bytes.Buffer
	if err := l.templates(s.cfg.BasePath, name).ExecuteTemplate(&b, "layout", v); err != nil {
		s.log.WithError(err).Error("the console could not write a page")
		plain(w, http.StatusInternalServerError, "The page could not be written.")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Language, Cookie")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w)
}

// selfOf is the address of the page that the request shows, to get it again.
func (s *site) selfOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if r.Method == http.MethodPost {
		if parts := strings.Split(path, "/"); len(parts) > 3 && parts[1] == "entries" {
			path = strings.Join(parts[:3], "/")
		}
		return s.cfg.BasePath + path
	}
	q := r.URL.Query()
	for _, gone := range []string{"lang", "done", "n"} {
		q.Del(gone)
	}
	if len(q) == 0 {
		return s.cfg.BasePath + path
	}
	return s.cfg.BasePath + path + "?" + q.Encode()
}

// with is an address with one more parameter.
func with(address, name, value string) string {
	sep := "?"
	if strings.Contains(address, "?") {
		sep = "&"
	}
	return address + sep + name + "=" + url.QueryEscape(value)
}

// funcs are what templates call beside the language's own.
func funcs(l *language, base string) template.FuncMap {
	return template.FuncMap{
		"t":     l.t,
		"at":    func(path string) string { return base + path },
		"asset": func(name string) string { return base + "/assets/" + name + "?v=" + version },
		"entry": func(id string) string { return base + "/entries/" + url.PathEscape(id) },
		"list":  func(name, value string) string { return base + "/entries?" + name + "=" + url.QueryEscape(value) },
		"state": func(s ops.State) string { return l.t("state " + string(s)) },
		"action": func(a ops.Action) string {
			if _, ok := l.texts["action "+string(a)]; ok {
				return l.t("action " + string(a))
			}
			return safeLine(string(a))
		},
		"role": func(p shownPerson) string { return l.t("role " + p.Role.String()) },
		"verdict": func(d *ops.Detail) string {
			if text, ok := verdicts[d.Verdict]; ok {
				return l.t(text)
			}
			return safeLine(d.VerdictText)
		},
		"n": l.number, "rate": rate, "when": when, "moment": moment, "age": l.age,
		"safe": safeLine, "sentence": l.sentence, "lines": safeLines, "oneline": oneLine, "brief": brief, "value": valueText,
		"inc":   func(i int) int { return i + 1 },
		"deref": deref,
	}
}

func deref(v any) any {
	switch v := v.(type) {
	case *bool:
		return v != nil && *v
	case *int:
		if v != nil {
			return *v
		}
		return 0
	}
	return v
}

// verdicts are the store's in words.
var verdicts = map[string]string{
	"applied":       "Yes, by its receipt: to discard it is safe, to retry only removes it.",
	"notApplied":    "No: a retry applies it once, to discard gives it up.",
	"neverApplied":  "No, and it never will be: discard it, and do the work anew if it is still wanted.",
	"cannotTell":    "That cannot be told.",
	"unreachable":   "That cannot be told now.",
	"notConfigured": "That cannot be told.",
}

// details are what the store says of most verdicts; anything else is shown as it
// is.
var details = []string{
	"it leaves no receipt in its target: look at the data",
	"it leaves no receipt in its target; the log knows of no attempt that may have been applied",
	"an attempt may be running at this moment",
}

// doneText says what was done before this page, as its address tells.
func (l *language) doneText(q url.Values) string {
	a := q.Get("done")
	key, ok := doneTexts[a]
	switch a {
	case "retry", "park", "discard":
		n, err := number(q.Get("n"), ops.MaxBulk)
		if err != nil {
			return ""
		}
		return fmt.Sprintf(l.t(key), l.entries(n))
	}
	if ok {
		return l.t(key)
	}
	return ""
}

// doneTexts say what was done.
var doneTexts = map[string]string{
	"retry": "%s made due now.", "park": "%s parked.", "discard": "%s discarded.",
	"pause": "The data source is paused.", "resume": "The data source is resumed.", "limit": "The limit is set.",
}
