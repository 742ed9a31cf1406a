package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A language is a language of the pages. Texts are looked up by their English form.
type language struct {
	Tag, Name string
	texts     map[string]string
	store     []sentence
	// parsed holds the templates by their site's base path and name.
	parsed sync.Map
}

var languages = []*language{
	{Tag: "en", Name: "English", texts: load("en")},
	{Tag: "zh", Name: "中文", texts: load("zh"), store: sentences("zh")},
}

// load reads locales/<tag>.json. English has only the texts whose key differs from the text.
func load(tag string) (texts map[string]string) {
	b, _ := files.ReadFile("locales/" + tag + ".json")
	if err := json.Unmarshal(b, &texts); err != nil {
		panic(err) // a test reads them
	}
	return texts
}

// t gives a text in the language; args are for its verbs.
func (l *language) t(key string, args ...any) string {
	text, ok := l.texts[key]
	if !ok {
		text = key
	}
	if len(args) > 0 {
		return fmt.Sprintf(text, args...)
	}
	return text
}

const languageCookie = "bed_lang"

func languageNamed(tag string) *language {
	for _, l := range languages {
		if l.Tag == tag {
			return l
		}
	}
	return nil
}

// languageOf is the language chosen, now or before, else the browser's.
func languageOf(r *http.Request) *language {
	if l := languageNamed(r.URL.Query().Get("lang")); l != nil {
		return l
	}
	if cookie, err := r.Cookie(languageCookie); err == nil {
		if l := languageNamed(cookie.Value); l != nil {
			return l
		}
	}
	first, _, _ := strings.Cut(r.Header.Get("Accept-Language"), ",")
	if strings.HasPrefix(strings.ToLower(strings.TrimSpace(first)), "zh") {
		return languages[1]
	}
	return languages[0]
}

// keepLanguage remembers a newly chosen language.
func keepLanguage(w http.ResponseWriter, r *http.Request, base string) {
	if l := languageNamed(r.URL.Query().Get("lang")); l != nil {
		http.SetCookie(w, &http.Cookie{
			Name: languageCookie, Value: l.Tag, Path: base + "/", MaxAge: 365 * 24 * 60 * 60,
			HttpOnly: true, Secure: r.TLS != nil || r.URL.Scheme == "https", SameSite: http.SameSiteLaxMode,
		})
	}
}

func (l *language) templates(base, name string) *template.Template {
	key := base + " " + name
	if t, ok := l.parsed.Load(key); ok {
		return t.(*template.Template)
	}
	t := template.Must(template.New(name).Funcs(funcs(l, base)).ParseFS(files, "templates/layout.html", "templates/"+name+".html"))
	l.parsed.Store(key, t)
	return t
}

// number groups digits.
func (l *language) number(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// count is a number, marked if there may be more.
func (l *language) count(n int, more bool) string {
	if more {
		return l.number(n) + "+"
	}
	return l.number(n)
}

func (l *language) entries(n int) string {
	if n == 1 {
		return l.t("1 entry")
	}
	return fmt.Sprintf(l.t("%s entries"), l.number(n))
}

// age says coarsely how long before now t was.
func (l *language) age(t, now time.Time) string {
	switch d := max(now.Sub(t), 0); {
	case d < time.Minute:
		return l.t("%d s", int(d/time.Second))
	case d < time.Hour:
		return l.t("%d min", int(d/time.Minute))
	case d < 48*time.Hour:
		return l.t("%d h", int(d/time.Hour))
	default:
		return l.t("%d days", int(d/(24*time.Hour)))
	}
}

// when is a time. The page's script shows it in the viewer's zone, with the exact value as a
// tooltip.
func when(t time.Time) template.HTML {
	iso := t.UTC().Format("2006-01-02T15:04:05.000Z")
	return template.HTML(`<time datetime="` + iso + `" title="` + iso + `">` + t.UTC().Format("2006-01-02 15:04:05") + ` UTC</time>`) //nolint:gosec // made of digits
}

// rate shows units per minute.
func rate(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f < 9.95:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return (&language{}).number(int(f + 0.5))
}

// A sentence is a format of the store's texts about entries and requests.
type sentence struct {
	said *regexp.Regexp
	text string
}

var verbs = regexp.MustCompile(`%(?:\\\.\d+|\\\+)?[a-z]`)

// sentences reads locales/<tag>-store.json: formats and their translations, with %s for the
// arguments. Formats with more fixed text come first.
func sentences(tag string) (all []sentence) {
	for format, text := range load(tag + "-store") {
		all = append(all, sentence{regexp.MustCompile(`(?s)^` + verbs.ReplaceAllString(regexp.QuoteMeta(format), `(.*)`) + `$`), text})
	}
	slices.SortFunc(all, func(a, b sentence) int { return cmp.Compare(len(b.said.String()), len(a.said.String())) })
	return all
}

// say translates a text of the store. Texts from a database, or without a known format, stay as
// they are.
func (l *language) say(text string) string {
	for _, s := range l.store {
		if found := s.said.FindStringSubmatch(text); found != nil {
			args := make([]any, len(found)-1)
			for i, arg := range found[1:] {
				args[i] = l.say(arg)
			}
			return fmt.Sprintf(s.text, args...)
		}
	}
	if head, rest, ok := strings.Cut(text, ": "); ok {
		if a, b := l.say(head), l.say(rest); a != head || b != rest {
			return a + "：" + b
		}
	}
	return text
}
