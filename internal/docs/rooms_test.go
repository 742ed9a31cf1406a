package docs

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const mostFiles = 3

// eachGoFile calls f for every Go file of the project.
func eachGoFile(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			files++
			f(path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d Go files were found", files)
	}
}

// What docs/architecture.md tells a reader to touch is there under that name.
func TestWhereToAddNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	var paths strings.Builder
	words := map[string]bool{}
	word := regexp.MustCompile(`\w+`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (path != root && strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return cmp.Or(err, fs.SkipDir)
		}
		paths.WriteString(filepath.ToSlash(strings.TrimPrefix(path, root)) + "\n")
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, w := range word.FindAllString(string(text), -1) {
			words[w] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile(`^[\w/-]+(\.(go|txt|sql|sh|md|html|json|yml)|/[\w-]+)$`)
	identifier := regexp.MustCompile(`^(\w+\.)?[A-Za-z]\w+$`)
	named := 0
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(section(t, read(t, "docs/architecture.md"), "Where to add"), -1) {
		switch name := m[1]; {
		case strings.Contains(name, "NAME"):
		case file.MatchString(name):
			named++
			if !strings.Contains(paths.String(), "/"+name+"\n") {
				t.Errorf("docs/architecture.md names the file %s, which is not there", name)
			}
		case identifier.MatchString(name):
			named++
			if _, last, ok := strings.Cut(name, "."); ok && !words[last] || !ok && !words[name] {
				t.Errorf("docs/architecture.md names %s, which no Go file has", name)
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d names were found", named)
	}
}

func TestMethodsStandWithTheirType(t *testing.T) {
	t.Parallel()
	at := map[string]map[string]bool{} // the files of each type's methods
	eachGoFile(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			name := filepath.Dir(path) + "." + receiver(fn.Recv.List[0].Type)
			if at[name] == nil {
				at[name] = map[string]bool{}
			}
			at[name][path] = true
		}
	})
	for name, files := range at {
		name = filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		if len(files) > mostFiles {
			t.Errorf("the methods of %s stand in %d files, %d are the most: split the type", name, len(files), mostFiles)
		}
	}
}

// receiver is the name of a receiver's type, without its pointer and parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
