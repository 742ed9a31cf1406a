package sqltext

import (
	"strings"
	"testing"
)

// Text around a statement does not change its meaning.
func FuzzClassify(f *testing.F) {
	for i, fl := range flavors {
		for _, text := range texts(f, i) {
			f.Add(uint8(fl.flavor), text)
		}
	}
	f.Fuzz(func(t *testing.T, flavor uint8, text string) {
		fl := Flavor(flavor % 4)
		want := Classify(fl, text)
		if want.Kind > Empty {
			t.Fatalf("%q has the kind %d", text, want.Kind)
		}
		switch {
		case want.Insert && want.Kind != DML,
			want.NeedsSession && want.Kind != DML,
			want.HasDML && want.Kind != Multi,
			want.ImplicitCommit && fl != MySQL,
			want.Kind == DML && want.Pins && !want.NeedsSession,
			want.Hazards != 0 && want.Kind != DML,
			(want.Name != "") != (want.Kind == Savepoint || want.Kind == RollbackTo || want.Kind == ReleaseSavepoint):
			t.Fatalf("%q is read as %+v", text, want)
		}
		for _, d := range decorations {
			if strings.Contains(d.after, "*/") {
				continue // it would end a comment that does not
			}
			if got := Classify(fl, d.before+text+d.after); got != want {
				t.Fatalf("%q is read as %+v\n%q as %+v", text, want, d.before+text+d.after, got)
			}
		}
		Mask(fl, text)
		want = classify(fl, text)
		c := NewCache(fl)
		for range 2 {
			if got := c.Get(text); got != want {
				t.Fatalf("%q is read as %+v, and from the cache as %+v", text, want, got)
			}
		}
	})
}
