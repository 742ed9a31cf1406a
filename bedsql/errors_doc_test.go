package bedsql

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
)

func TestTheDocumentationOfTheErrorsNamesTheirFields(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "errors.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := doc.NewFromFiles(files, []*ast.File{file}, "bedsql")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, typ := range pkg.Types {
		texts[typ.Name] = typ.Doc
	}
	for name, typ := range map[string]reflect.Type{"PendingError": reflect.TypeFor[PendingError](), "RefusedError": reflect.TypeFor[RefusedError]()} {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.IsExported() && !strings.Contains(strings.Join(strings.Fields(texts[name]), " "), f.Name+" "+f.Type.String()+" //") {
				t.Errorf("%s: %s %s is missing in\n%s", name, f.Name, f.Type, texts[name])
			}
		}
	}
}
