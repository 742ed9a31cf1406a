package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// perDatabase are the types with a value for each database, and their files. [T] marks a type with
// parameters.
var perDatabase = map[string]string{"Texts": "internal/sqltext/own.go", "By[T]": "internal/test/testdb/testdb.go"}

// A new field for a fourth database is reported wherever it has no value yet.
func TestNoDatabaseIsLeftOut(t *testing.T) {
	t.Parallel()
	fields := map[string][]string{}
	for name, file := range perDatabase {
		if fields[name] = fieldsOf(t, strings.TrimSuffix(name, "[T]"), read(t, file)); len(fields[name]) < 3 {
			t.Fatalf("%s of %s has the fields %v", name, file, fields[name])
		}
	}
	literals := 0
	eachGoFile(t, func(path string, text []byte) {
		for at, missing := range leftOut(t, path, text, fields) {
			if literals++; missing != nil {
				t.Errorf("%s: nothing for %s", at, strings.Join(missing, ", "))
			}
		}
	})
	if literals < 60 {
		t.Errorf("only %d literals were found", literals)
	}
}

func TestADatabaseThatIsLeftOutIsNamed(t *testing.T) {
	t.Parallel()
	fields := map[string][]string{"By[T]": {"MySQL", "Postgres", "SQLite", "Oracle"}}
	got := leftOut(t, "x.go", []byte(`package x
var a = testdb.By[string]{MySQL: "", Postgres: "b", SQLite: "c"}
var b = By[int]{MySQL: 1, Postgres: 2, SQLite: 3, Oracle: 4}
var c = ops.By{}
`), fields)
	if len(got) != 2 || !slices.Equal(got["x.go:2:9"], []string{"Oracle"}) || got["x.go:3:9"] != nil {
		t.Errorf("found %v", got)
	}
}

// leftOut returns the missing fields of each literal, by its place.
func leftOut(t *testing.T, path string, text []byte, fields map[string][]string) map[string][]string {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		all := fields[typeName(lit.Type)]
		if all == nil {
			return true
		}
		missing := slices.Clone(all)
		for _, e := range lit.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				missing = slices.DeleteFunc(missing, func(name string) bool { return isName(kv.Key, name) })
			}
		}
		if len(missing) == 0 {
			missing = nil
		}
		place := set.Position(lit.Pos())
		place.Filename = filepath.ToSlash(path)
		found[place.String()] = missing
		return true
	})
	return found
}

// typeName is the name of a type without its package.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.IndexExpr:
		return typeName(e.X) + "[T]"
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// fieldsOf returns the fields of a struct defined in a file.
func fieldsOf(t *testing.T, name, text string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == name {
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				for _, f := range field.Names {
					all = append(all, f.Name)
				}
			}
		}
		return true
	})
	return all
}
