package console

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

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
