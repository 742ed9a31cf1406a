// Package cases reads the tests' cases from testdata/ at the top: one on a line, the expectation
// first, then its input, separated by tabs. A line beginning with # is a comment. A field with
// tabs, line breaks or odd bytes is a Go string in double quotes; others are literal.
//
//	go test ./internal/sqltext -update
//
// writes the actual results into the files as expectations, to be read and committed. A linked file
// holds a definition used by the code itself: it is compared even with -update, and never written.
package cases

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the expectations of testdata/ anew")

// Case is a line of a file.
type Case struct {
	// Place is the file and the line, for messages.
	Place string
	// Want is the expectation, In its input.
	Want string
	In   []string
}

// Path gives the path of a file of testdata/.
func Path(t testing.TB, file string) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "testdata", filepath.FromSlash(file))
}

// Text gives the content of a file.
func Text(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Read gives the cases of a file.
func Read(t testing.TB, file string) (list []Case) {
	t.Helper()
	number := 0
	for line := range strings.Lines(Text(t, file)) {
		if number++; isCase(line) {
			fields := split(line)
			list = append(list, Case{file + ":" + strconv.Itoa(number), fields[0], fields[1:]})
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s holds no case", file)
	}
	return list
}

// Check compares the result of got with the expectation, for each case of a file.
func Check(t *testing.T, file string, got func(t *testing.T, in ...string) string) {
	t.Helper()
	var out strings.Builder
	list := Read(t, file)
	for line := range strings.Lines(Text(t, file)) {
		if !isCase(line) {
			out.WriteString(line)
			continue
		}
		c := list[0]
		list = list[1:]
		is := got(t, c.In...)
		if is != c.Want && !updates(t, file) {
			t.Errorf("%s: %q\n\tis   %s\n\twant %s", c.Place, c.In, is, c.Want)
		}
		out.WriteString(Line(append([]string{is}, c.In...)...))
	}
	write(t, file, out.String())
}

// Line writes the fields of a case.
func Line(fields ...string) string {
	for i := range fields {
		fields[i] = quote(fields[i])
	}
	return strings.Join(fields, "\t") + "\n"
}

// CheckText compares a whole file, relative to testdata/, with the given text.
func CheckText(t *testing.T, file, is string) {
	t.Helper()
	was, now := strings.Split(Text(t, file), "\n"), strings.Split(is, "\n")
	for i := 0; !updates(t, file) && i < max(len(was), len(now)); i++ {
		if i >= len(was) || i >= len(now) || was[i] != now[i] {
			t.Fatalf("%s: from line %d on it has\n%q\nand is to have\n%q", file, i+1, was[min(i, len(was)):], now[min(i, len(now)):])
		}
	}
	write(t, file, is)
}

// updates reports whether a file is to be written anew instead of compared.
func updates(t testing.TB, file string) bool {
	t.Helper()
	if !*update {
		return false
	}
	info, err := os.Lstat(Path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().IsRegular()
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if !updates(t, file) || t.Failed() {
		return
	}
	if err := os.WriteFile(Path(t, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func isCase(line string) bool { return strings.TrimSpace(line) != "" && line[0] != '#' }

func split(line string) []string {
	fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
	for i, field := range fields {
		if plain, err := strconv.Unquote(field); err == nil && field[0] == '"' {
			fields[i] = plain
		}
	}
	return fields
}

// quote is the opposite of split.
func quote(field string) string {
	_, err := strconv.Unquote(field)
	odd := field == "" || field[0] == '#' || err == nil && field[0] == '"'
	for _, r := range field {
		odd = odd || r < ' ' || r == '\ufeff' || r == '\ufffd' || r == 0x7f
	}
	if odd {
		return strconv.Quote(field)
	}
	return field
}
