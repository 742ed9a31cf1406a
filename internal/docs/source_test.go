package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parse reads the files of a package, without its tests.
func parse(t *testing.T, dir string) []*ast.File {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// literal returns the text of a constant; ok is false for other expressions.
func literal(e ast.Expr) (text string, ok bool) {
	b, ok := e.(*ast.BasicLit)
	if !ok {
		return "", false
	}
	if s, err := strconv.Unquote(b.Value); err == nil {
		return s, true
	}
	return b.Value, true
}

// eachMap calls f for each constant key and its value in the matching map literals.
func eachMap(files []*ast.File, match func(*ast.MapType) bool, f func(key string, value ast.Expr)) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			c, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			m, ok := c.Type.(*ast.MapType)
			if !ok || !match(m) {
				return true
			}
			for _, e := range c.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if key, ok := literal(kv.Key); ok {
					f(key, kv.Value)
				}
			}
			return true
		})
	}
}

func mapKeys(files []*ast.File, match func(*ast.MapType) bool) []string {
	var keys []string
	eachMap(files, match, func(key string, _ ast.Expr) { keys = append(keys, key) })
	slices.Sort(keys)
	return slices.Compact(keys)
}

// commandNames finds the commands of cobra: the first word of each constant Use, and each verb used
// to make one.
func commandNames(files []*ast.File) []string {
	var names []string
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok || !isName(kv.Key, "Use") && !isName(kv.Key, "verb") {
				return true
			}
			if text, ok := literal(kv.Value); ok {
				name, _, _ := strings.Cut(text, " ")
				names = append(names, name)
			}
			return true
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}
