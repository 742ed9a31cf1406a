package docs

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostLines = 450
	mostFiles = 3
)

// toSplit are types that still have to be split: take them off, add none.
var toSplit = map[string]bool{
	"console.Console":                  true,
	"cmd/bed-job/internal/cli.decoder": true,
	"cmd/bed-job/internal/cli.app":     true,
	"internal/besteffort.Deliverer":    true,
}

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

func TestNoFileIsLongerThanAReaderKeepsInMind(t *testing.T) {
	t.Parallel()
	eachGoFile(t, func(path string, text []byte) {
		if n := bytes.Count(text, []byte("\n")); n > mostLines {
			t.Errorf("%s has %d lines, %d are the most: split it by what it is about", path, n, mostLines)
		}
	})
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
		if len(files) > mostFiles && !toSplit[name] {
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
