package console

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/ops"
)

// said finds the translated texts in templates and in code.
var said = []*regexp.Regexp{
	regexp.MustCompile(`\{\{-?[^{}]*?\bt "([^"]+)"`),
	regexp.MustCompile(`\(t "([^"]+)"`),
	regexp.MustCompile(`l\.t\("([^"]+)"`),
	regexp.MustCompile(`text: "([^"]+)"`),
}

// texts are all texts of the pages.
func texts(t *testing.T) []string {
	t.Helper()
	var all []string
	read := func(name string, b []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, re := range said {
			for _, m := range re.FindAllStringSubmatch(string(b), -1) {
				if !strings.HasSuffix(m[1], " ") {
					all = append(all, m[1])
				}
			}
		}
	}
	templates, err := fs.Glob(files, "templates/*.html")
	if err != nil || len(templates) < 6 {
		t.Fatal(templates, err)
	}
	for _, name := range templates {
		b, err := files.ReadFile(name)
		read(name, b, err)
	}
	code, _ := fs.Glob(os.DirFS("."), "*.go")
	for _, name := range code {
		if !strings.HasSuffix(name, "_test.go") {
			b, err := os.ReadFile(name)
			read(name, b, err)
		}
	}
	for _, text := range verdicts {
		all = append(all, text)
	}
	for _, text := range ops.NextTexts {
		all = append(all, text)
	}
	for _, text := range ops.GroupTexts {
		all = append(all, text)
	}
	for _, text := range meanings {
		all = append(all, text)
	}
	for _, s := range series {
		all = append(all, s.Name)
	}
	for _, text := range doneTexts {
		all = append(all, text)
	}
	for key := range languages[0].texts {
		all = append(all, key)
	}
	for _, r := range ranges {
		all = append(all, r.text)
	}
	all = append(all, "caller", "sync retry", "async job")
	for class := dialect.Unknown; class <= dialect.Unclassified; class++ {
		all = append(all, class.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var verb = regexp.MustCompile(`%[a-z]`)

func TestEveryTextIsInBothLanguages(t *testing.T) {
	t.Parallel()
	known := texts(t)
	if len(known) < 120 {
		t.Fatalf("only %d texts were found", len(known))
	}
	zh := languages[1].texts
	for _, key := range known {
		translated, ok := zh[key]
		switch english := languages[0].t(key); {
		case !ok:
			t.Errorf("locales/zh.json lacks %q", key)
		case !strings.ContainsFunc(translated, func(r rune) bool { return unicode.Is(unicode.Han, r) }):
			t.Errorf("%q is %q in Chinese", key, translated)
		case !slices.Equal(verb.FindAllString(english, -1), verb.FindAllString(translated, -1)):
			t.Errorf("%q has other verbs than %q", translated, english)
		}
	}
	for key := range zh {
		if !slices.Contains(known, key) {
			t.Errorf("locales/zh.json has %q, which nothing says", key)
		}
	}
}
