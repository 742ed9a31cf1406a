package cases

import (
	"os"
	"path/filepath"
	"testing"
)

// It sets the package's flag and the working directory, so it is not parallel.
func TestUpdateNeverWritesALinkedDefinition(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for file, text := range map[string]string{"go.mod": "", "definition.txt": "yes\ta\n", "testdata/cases.txt": "?\ta\n"} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../definition.txt", "testdata/link.txt"); err != nil {
		t.Skip(err)
	}
	*update = true
	defer func() { *update = false }()
	Check(t, "cases.txt", func(*testing.T, ...string) string { return "no" })
	if got := Text(t, "cases.txt"); got != "no\ta\n" {
		t.Errorf("-update left %q", got)
	}
	if updates(t, "link.txt") {
		t.Error("-update would not compare the lines of a definition")
	}
	write(t, "link.txt", "no\ta\n")
	if got := Text(t, "link.txt"); got != "yes\ta\n" {
		t.Errorf("-update made %q of a definition", got)
	}
}
