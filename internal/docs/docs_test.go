package docs

import (
	"go/ast"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/cases"
)

// root is the repository's, seen from this package.
const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentsHoldTheExamplesThatAreRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ document, file, example string }{
		{"docs/adopting.md", "bedsql/example_testing_test.go", "Example_testing"},
		{"docs/http.md", "bedsql/bedhttp/example_test.go", "Example"},
		{"docs/messages.md", "bedsql/message/example_test.go", "Example"},
		{"docs/soft-transactions.md", "bedsql/example_soft_test.go", "ExampleStaged"},
		{"docs/keys.md", "bedsql/example_soft_test.go", "ExampleWithIdempotencyKey"},
	} {
		_, body, ok := strings.Cut(read(t, c.file), "\nfunc "+c.example+"() {\n")
		body, _, ok2 := strings.Cut(body, "\n}\n")
		if !ok || !ok2 {
			t.Fatalf("%s has no func %s()", c.file, c.example)
		}
		body = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body, "")
		if !strings.Contains(read(t, c.document), "```go\n"+body+"\n```\n") {
			t.Errorf("%s does not hold the body of %s, word for word:\n%s", c.document, c.example, body)
		}
	}
}

// The examples are programs with their own tests.
func TestSnippetsAreTakenFromTheExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "examples", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var examples []string // with each indentation that a snippet may have lost
	for _, file := range files {
		text := read(t, strings.TrimPrefix(filepath.ToSlash(file), root))
		for range 3 {
			examples = append(examples, "\n"+text)
			text = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(text, "")
		}
	}
	snippets := regexp.MustCompile("(?s)\n *```go\n(.*?\n) *```\n").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(snippets) < 2 {
		t.Errorf("README.md has %d snippets of Go", len(snippets))
	}
	for _, m := range snippets {
		if !slices.ContainsFunc(examples, func(text string) bool { return strings.Contains(text, "\n"+m[1]) }) {
			t.Errorf("this snippet of README.md is not in an example; copy it from one:\n%s", m[1])
		}
	}
}

func TestEveryFieldOfTheConfigurationsIsDocumented(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/configuration.md")
	for heading, config := range map[string]reflect.Type{
		"bedsql.Config":   reflect.TypeFor[bedsql.Config](),
		"asyncjob.Config": reflect.TypeFor[asyncjob.Config](),
	} {
		part := section(t, text, heading)
		for i := range config.NumField() {
			if name := config.Field(i).Name; !strings.Contains(part, "| `"+name+"` |") {
				t.Errorf("docs/configuration.md has no row for %s of %s", name, heading)
			}
		}
	}
}

func TestEveryKeyOfTheJobsFileIsDocumented(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/configuration.md")
	part := section(t, text, "bed-job.yaml") + section(t, text, "asyncjob.Config") // for jobConfig
	keys := mapKeys(parse(t, "cmd/bed-job/internal/cli"), func(m *ast.MapType) bool {
		return isName(m.Value, "any") && isName(m.Key, "string")
	})
	for _, m := range regexp.MustCompile("yaml:\"(\\w+)\"").FindAllStringSubmatch(read(t, "cmd/bed-job/internal/cli/config.go"), -1) {
		keys = append(keys, m[1])
	}
	if len(keys) < 30 {
		t.Fatalf("only %d keys were found in the code: %v", len(keys), keys)
	}
	for _, key := range keys {
		if !strings.Contains(part, "| `"+key+"` |") {
			t.Errorf("docs/configuration.md has no row for the key %s", key)
		}
	}
}

func TestEveryCommandIsInReadmeAndOperations(t *testing.T) {
	t.Parallel()
	commands := commandNames(parse(t, "cmd/bed-job/internal/cli"))
	if len(commands) < 10 {
		t.Fatalf("only these commands were found in the code: %v", commands)
	}
	for page, text := range map[string]string{
		"README.md": read(t, "README.md"), "docs/operations.md and docs/stuck.md": read(t, "docs/operations.md") + read(t, "docs/stuck.md"),
	} {
		for _, name := range commands {
			if !regexp.MustCompile("`" + name + "\\b|bed-job " + name + `\b`).MatchString(text) {
				t.Errorf("%s do not mention the command %s", page, name)
			}
		}
	}
}

func TestEveryColumnIsDocumented(t *testing.T) {
	t.Parallel()
	part := section(t, read(t, "docs/table.md"), "Columns")
	column := regexp.MustCompile("(?m)^  [`\"]?([a-z0-9_]+)[`\"]? +[A-Z]+\\b")
	found := column.FindAllStringSubmatch(read(t, "schema.sql"), -1)
	if len(found) < 3*18 {
		t.Fatalf("only %d columns were found in schema.sql", len(found))
	}
	documented := named(part)
	for _, m := range found {
		if !slices.Contains(documented, m[1]) {
			t.Errorf("docs/table.md has no row for the column %s", m[1])
		}
	}
}

// docs/errors.md links to the tables read by the code, and quotes them correctly.
func TestErrorsAreDocumentedAsTheCodeReadsThem(t *testing.T) {
	t.Parallel()
	part := section(t, read(t, "docs/errors.md"), "The codes")
	files := []string{"mysql", "postgres", "sqlite"} // the columns of the table
	classes := map[string]map[string]string{}
	for _, file := range files {
		if !strings.Contains(part, "(../bedsql/"+file+"/errors.txt)") {
			t.Errorf("docs/errors.md does not link to the errors of %s", file)
		}
		classes[file] = map[string]string{}
		for _, c := range cases.Read(t, "errors/"+file+".txt") {
			for code := range strings.FieldsSeq(c.In[0]) {
				classes[file][code] = c.Want
			}
		}
	}
	for _, class := range []string{dialect.Duplicate.String(), dialect.Refused.String(), "mistake", dialect.Contention.String(), "outage", dialect.Retryable.String(), dialect.Unknown.String()} {
		_, row, ok := strings.Cut(part, "\n| "+class+" |")
		row, _, _ = strings.Cut(row, "\n")
		cells := strings.Split(row, "|")
		if !ok || len(cells) != len(files)+1 {
			t.Errorf("docs/errors.md has no row of codes for %s", class)
			continue
		}
		for i, file := range files {
			for code := range strings.FieldsSeq(cells[i]) {
				if is := classes[file][code]; is != class {
					t.Errorf("docs/errors.md: %s of %s is %q, not %s", code, file, is, class)
				}
			}
		}
	}
}

// named returns the names between backticks in the first cells of a page's tables.
func named(text string) (list []string) {
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && cells[0] == "" {
			list = append(list, names(cells[1], "`(\\w+)`")...)
		}
	}
	return list
}

// section returns the text under a heading, up to the next heading of its level or a higher one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	var b strings.Builder
	level := 0
	for line := range strings.SplitSeq(text, "\n") {
		marks, title, ok := strings.Cut(line, " ")
		if ok && strings.Trim(marks, "#") == "" && marks != "" {
			if level > 0 && len(marks) <= level {
				break
			}
			if title == heading {
				level = len(marks)
			}
		}
		if level > 0 {
			b.WriteString(line + "\n")
		}
	}
	if level == 0 {
		t.Fatalf("there is no heading %q", heading)
	}
	return b.String()
}
