package safetext_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/safetext"
)

// No byte of a stored text controls a terminal, and harmless texts stay unescaped.
func FuzzNothingThatATerminalObeysPasses(f *testing.F) {
	for _, s := range []string{"plain é 漢字 🙂", "\x1b[31mred", "a\x00b\x7fc", "a\r\nb\tc\r", "\u009b31m", "\u202egro\u200b", "bad \xff utf8", "\uFFFD", "\U000E0001", "\u2028\u00a0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, shown := range []struct{ text, keep string }{{safetext.Line(s), ""}, {safetext.Lines(s), "\n\t"}} {
			plain := utf8.ValidString(s)
			for _, r := range shown.text {
				if !unicode.IsPrint(r) && !strings.ContainsRune(shown.keep, r) {
					t.Errorf("%q is shown as %q", s, shown.text)
				}
			}
			for _, r := range s {
				plain = plain && (unicode.IsPrint(r) || strings.ContainsRune(shown.keep, r))
			}
			if plain != (shown.text == s) || !utf8.ValidString(shown.text) {
				t.Errorf("%q is shown as %q", s, shown.text)
			}
		}
	})
}
