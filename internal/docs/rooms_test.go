package docs

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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

// The names in docs/architecture.md's advice on changes exist.
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
