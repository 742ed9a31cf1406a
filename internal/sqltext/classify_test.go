package sqltext

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/cases"
)

var flavors = []struct {
	flavor Flavor
	name   string
}{{ANSI, "ANSI"}, {MySQL, "MySQL"}, {Postgres, "Postgres"}, {SQLite, "SQLite"}}

// dml is a plain write, as it is read without its hazards.
var dml = Class{Kind: DML}

func savepoint(name string) Class { return Class{Kind: Savepoint, Name: name} }

// describe writes a class as testdata/sqltext has it.
func describe(c Class) string {
	text := c.Kind.String()
	if c.Name != "" {
		text += " " + c.Name
	}
	for _, f := range []struct {
		is   bool
		word string
	}{
		{c.Insert, "insert"}, {c.ImplicitCommit, "implicit-commit"}, {c.Pins, "pins"},
		{c.NeedsSession, "needs-session"}, {c.Locks, "locks"}, {c.HasDML, "has-DML"}, {c.ByQuoting, "by-quoting"},
		{c.Hazards&SelfReferring != 0, "self-referring"}, {c.Hazards&NoKey != 0, "no-key"}, {c.Hazards&Limited != 0, "limited"},
		{c.Hazards&NonDeterministic != 0, "non-deterministic"}, {c.Hazards&Clock != 0, "clock"},
	} {
		if f.is {
			text += ", " + f.word
		}
	}
	return text
}

func flavorOf(t testing.TB, name string) Flavor {
	for _, f := range flavors {
		if f.name == name {
			return f.flavor
		}
	}
	t.Fatalf("%s is no flavor", name)
	return ANSI
}

func TestTextIsReadByItsFlavor(t *testing.T) {
	t.Parallel()
	for _, f := range flavors {
		cases.Check(t, "sqltext/"+strings.ToLower(f.name)+".txt", func(_ *testing.T, in ...string) string {
			return describe(Classify(f.flavor, in[0]))
		})
	}
	cases.Check(t, "sqltext/common.txt", func(t *testing.T, in ...string) string {
		want := describe(Classify(ANSI, in[0]))
		for _, f := range flavors {
			if is := describe(Classify(f.flavor, in[0])); is != want {
				t.Errorf("%q is read by %s as %s, by ANSI as %s", in[0], f.name, is, want)
			}
		}
		return want
	})
}

func TestTextIsReadByItsSessionsQuoting(t *testing.T) {
	t.Parallel()
	quotings := map[string]Quoting{
		"default": 0, "backslash-is-plain": BackslashIsPlain, "quotes-are-names": QuotesAreNames, "backslash-escapes": BackslashEscapes,
	}
	cases.Check(t, "sqltext/quoting.txt", func(t *testing.T, in ...string) string {
		name, quoting, _ := strings.Cut(in[0], " ")
		q, ok := quotings[quoting]
		if !ok {
			t.Fatalf("%s is no quoting", quoting)
		}
		flavor := flavorOf(t, name)
		class := ClassifyAs(flavor, q, in[1])
		class.ByQuoting = NewCache(flavor).Get(in[1]).ByQuoting
		return describe(class)
	})
}

func TestShownTextHoldsNoValues(t *testing.T) {
	t.Parallel()
	cases.Check(t, "sqltext/mask.txt", func(t *testing.T, in ...string) string { return Mask(flavorOf(t, in[0]), in[1]) })
}

func TestStatementsThatDifferInRowCountAreOne(t *testing.T) {
	t.Parallel()
	cases.Check(t, "sqltext/shape.txt", func(t *testing.T, in ...string) string { return Mask(flavorOf(t, in[0]), in[1]) })
}

// A hazard is not lost behind, or within, another statement of the same text.
func TestHazardsInAWithQuery(t *testing.T) {
	t.Parallel()
	for _, c := range cases.Read(t, "sqltext/common.txt") {
		plain := c.In[0]
		want := Classify(Postgres, plain)
		if want.Kind != DML || want.Insert || !strings.HasPrefix(plain, "UPDATE") && !strings.HasPrefix(plain, "DELETE") {
			continue
		}
		for _, text := range []string{
			"WITH x AS (" + plain + ") SELECT * FROM x",
			"WITH x AS (SELECT 1) " + plain,
			"WITH x AS (" + plain + " RETURNING a) DELETE FROM u WHERE b IN (SELECT a FROM x)",
		} {
			if got := Classify(Postgres, text).Hazards; got != want.Hazards&^Limited {
				t.Errorf("%q\n\thas the hazards %06b\n\twant            %06b", text, got, want.Hazards)
			}
		}
	}
}

// texts are those of all files for the i-th of flavors.
func texts(t testing.TB, i int) []string {
	var out []string
	for _, file := range []string{strings.ToLower(flavors[i].name), "common"} {
		for _, c := range cases.Read(t, "sqltext/"+file+".txt") {
			out = append(out, c.In[0])
		}
	}
	return out
}

// decorations do not change the meaning of a text.
var decorations = []struct{ before, after string }{
	{"", ""},
	{" \t\r\n\v\f", ""},
	{"\ufeff", ""},
	{"/* UPDATE t; '\" */", ""},
	{"-- DELETE FROM t; '\n", ""},
	{";; ;", ""},
	{"", "\n;"},
	{"", "\n;; -- x"},
	{"", "\n/* ; DELETE FROM t */ ; /* x */\n"},
	{"/**/ ", " "},
}

func TestDecorationDoesNotChangeTheClass(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, plain := range texts(t, i) {
			want := Classify(f.flavor, plain)
			for _, d := range decorations {
				text := d.before + plain + d.after
				if got := Classify(f.flavor, text); got != want {
					t.Errorf("%s: %q\n\tis read as %+v\n\twant       %+v", f.name, text, got, want)
				}
			}
		}
	}
}

func TestLetterCaseDoesNotChangeTheClass(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, as := range texts(t, i) {
			want := Classify(f.flavor, as)
			if want.Name != "" || strings.Contains(as, "$") || strings.Contains(as, "/*M!") {
				continue // names, tags and the mark of MariaDB keep their case
			}
			for _, text := range []string{strings.ToLower(as), strings.ToUpper(as)} {
				if got := Classify(f.flavor, text); got != want {
					t.Errorf("%s: %q\n\tis read as %+v\n\twant       %+v", f.name, text, got, want)
				}
			}
		}
	}
}

// One statement beside another is Multi, whatever both are.
func TestTwoStatementsAreMulti(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, text := range texts(t, i) {
			alone := Classify(f.flavor, text)
			if alone.Kind == Empty || alone.Kind == Multi {
				continue
			}
			got := Classify(f.flavor, "UPDATE t SET a = 1;"+text)
			want := Class{Kind: Multi, HasDML: true, ImplicitCommit: alone.ImplicitCommit, Pins: alone.Pins}
			switch alone.Kind {
			case Read, DML, DDL:
			default:
				want.Pins = true
			}
			if got != want {
				t.Errorf("%s: an UPDATE, then %q\n\tis read as %+v\n\twant       %+v", f.name, text, got, want)
			}
		}
	}
}

// A text with an unterminated quote or comment is still a write if it begins as one, and never a
// well-understood read.
func TestTruncatedTextsDoNotTurnIntoReads(t *testing.T) {
	t.Parallel()
	for i, f := range flavors {
		for _, text := range texts(t, i) {
			for i := range len(text) {
				got := Classify(f.flavor, text[:i])
				if starts := text[:i]; strings.HasPrefix(starts, "UPDATE ") && got.Kind != DML && got.Kind != Multi {
					t.Errorf("%s: %q is read as %v", f.name, starts, got.Kind)
				}
			}
		}
	}
	for _, text := range []string{"SELECT 'a", `SELECT 1; COMMIT "x`, "COMMIT /* x"} {
		for _, f := range []Flavor{ANSI, MySQL, Postgres} {
			if got := Classify(f, text); got.Kind != Opaque && !(got.Kind == Multi && got.Pins) {
				t.Errorf("flavor %d: %q is read as %+v", f, text, got)
			}
		}
	}
}

func TestClassifyTakesNoMemory(t *testing.T) {
	for i, f := range flavors {
		for _, text := range texts(t, i) {
			if Classify(f.flavor, text).Name != "" {
				continue
			}
			n := 1.0
			for range 20 { // under the race detector a pool forgets at random
				if n = testing.AllocsPerRun(1, func() { Classify(f.flavor, text) }); n == 0 {
					break
				}
			}
			if n != 0 {
				t.Errorf("%s: %q takes %v allocations", f.name, text, n)
			}
		}
	}
}

// Time must not explode with the text: statements come from anywhere.
func TestHugeTextsAreReadInOnePass(t *testing.T) {
	t.Parallel()
	const n = 1 << 17
	for _, part := range []string{
		"(", ")", ";", "/*", "/*!", "$a", "$a$b", "E'", "'", "SET STATEMENT a=1 FOR ", "EXPLAIN ANALYZE ", "EXPLAIN (",
		"WITH a AS (", "set_config(", "BEGIN ", "CASE ", "INTO LOCAL ", "E'' -- \n", "--\n", "@@a.", "IF ",
		"UPDATE t SET a = ", "UPDATE t SET a = a ", "a = a, ", "(UPDATE t SET ", "CASE WHEN a THEN a END + ", "t.", "(SELECT a FROM t WHERE ",
		"INSERT INTO t (a) VALUES (1) ", "ON DUPLICATE KEY UPDATE a = ", "now(", "RETURNING id, ",
	} {
		text := strings.Repeat(part, n/len(part))
		for _, f := range flavors {
			Classify(f.flavor, text)
			Classify(f.flavor, "SELECT "+text)
			Classify(f.flavor, "UPDATE t SET "+text)
			Classify(f.flavor, "INSERT INTO t "+text)
			Mask(f.flavor, text)
			Classify(f.flavor, "CREATE TRIGGER "+text)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := Read; k <= Empty; k++ {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("kind %d is called %q", k, s)
		}
		seen[k.String()] = true
	}
}

// The classifier would miss a call of a function named like a keyword.
func TestNoFunctionThatVariesIsAKeyword(t *testing.T) {
	t.Parallel()
	for _, names := range []map[string]Hazards{functions, withoutArguments} {
		for name := range names {
			if lookup(name) != "" {
				t.Errorf("%s is a keyword too, calls of it are not seen", name)
			}
		}
	}
}

// A misspelled word would never match a token.
func TestEveryWordComparedIsInATable(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`"[A-Z_]{2,}"`)
	tables := regexp.MustCompile(`^\t+("[A-Z_]+"|Read):|= map\[`) // a line of a table declares its words
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(source)) {
			if strings.HasSuffix(file, "_test.go") || tables.MatchString(line) {
				continue
			}
			for _, literal := range word.FindAllString(line, -1) {
				if lookup(strings.Trim(literal, `"`)) == "" {
					t.Errorf("%s: %s is no keyword, in %q", file, literal, strings.TrimSpace(line))
				}
			}
		}
	}
}
