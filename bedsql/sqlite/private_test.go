package sqlite

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

func TestLogsFileIsReadableByItsOwnerAlone(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no such modes there")
	}
	for dsn, existing := range map[string]bool{"%s": false, "file:%s?_pragma=journal_mode(wal)": false, "file:%s": true} {
		path := filepath.Join(t.TempDir(), "log.db")
		want := os.FileMode(0o600)
		if existing {
			want = 0o644
			if err := os.WriteFile(path, nil, want); err != nil {
				t.Fatal(err)
			}
		}
		log, err := txlog.Open(t.Context(), "sqlite", strings.ReplaceAll(dsn, "%s", path))
		if err != nil {
			t.Fatal(err)
		}
		u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
		if err := log.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(path + "*")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v", filepath.Base(file), info.Mode(), err)
			}
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
