package docs

import (
	"go/ast"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/listener/delivery"
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
		{"README.md", "bedsql/example_test.go", "Example"},
		{"docs/soft-transactions.md", "bedsql/example_soft_test.go", "ExampleStaged"},
		{"docs/soft-transactions.md", "bedsql/example_soft_test.go", "ExampleWithIdempotencyKey"},
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
	part := section(t, read(t, "docs/configuration.md"), "bed-job.yaml")
	keys := mapKeys(parse(t, "cmd/bed-job/internal/cli"), func(m *ast.MapType) bool {
		_, ok := m.Value.(*ast.FuncType)
		return ok && isName(m.Key, "string")
	})
	if len(keys) < 15 {
		t.Fatalf("only %d keys were found in the code: %v", len(keys), keys)
	}
	for _, key := range keys {
		if !strings.Contains(part, "| `"+key+"` |") {
			t.Errorf("docs/configuration.md has no row for the key %s", key)
		}
	}
}

func TestEveryCommandIsInTheReadmeAndInOperations(t *testing.T) {
	t.Parallel()
	commands := commandNames(parse(t, "cmd/bed-job/internal/cli"))
	if len(commands) < 10 {
		t.Fatalf("only these commands were found in the code: %v", commands)
	}
	for _, page := range []string{"README.md", "docs/operations.md"} {
		text := read(t, page)
		for _, name := range commands {
			if !regexp.MustCompile("`" + name + "\\b|bed-job " + name + `\b`).MatchString(text) {
				t.Errorf("%s does not mention the command %s", page, name)
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
	for _, m := range found {
		if !strings.Contains(part, "| `"+m[1]+"` |") {
			t.Errorf("docs/table.md has no row for the column %s", m[1])
		}
	}
}

// The lists of docs/errors.md are written from the tables that the code reads, by
// go test ./internal/docs -run Errors -update.
func TestTheErrorsAreDocumentedAsTheCodeReadsThem(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/errors.md")
	for database, file := range map[string]string{"MySQL": "mysql", "PostgreSQL": "postgres", "SQLite": "sqlite"} {
		for _, class := range []delivery.Class{delivery.Duplicate, delivery.Refused, delivery.Retryable, delivery.Unknown} {
			var codes, states []string
			for _, c := range cases.Read(t, "errors/"+file+".txt") {
				switch code, reason := c.In[0], c.In[1]; {
				case c.Want != class.String():
				case len(code) == 2 && file != "sqlite":
					states = append(states, code+" "+reason)
				default:
					name, remark, _ := strings.Cut(reason, " ")
					codes = append(codes, strings.TrimSpace(code+" `"+name+"` "+remark))
				}
			}
			list := paragraph("", codes)
			if len(states) > 0 {
				list += paragraph("Otherwise by the class of the SQLSTATE: ", states)
			}
			name, _, _ := strings.Cut(class.String(), " ")
			old := section(t, text, database+": "+name)
			heading, _, _ := strings.Cut(old, "\n")
			text = strings.Replace(text, old, heading+"\n\n"+list, 1)
		}
	}
	cases.CheckText(t, "../docs/errors.md", text)
}

// paragraph sets a list with semicolons in lines of 120 characters.
func paragraph(begin string, list []string) string {
	var b strings.Builder
	line := begin
	for i, entry := range list {
		entry += map[bool]string{true: ".", false: ";"}[i == len(list)-1]
		if len(line)+len(entry) > 120 {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = ""
		}
		line += entry + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n\n")
	return b.String()
}

// section gives what stands under a heading, up to the next of its level or a
// higher one.
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
