package bedsql

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/bedsql/bed/listener/delivery"
)

// sharedFile returns the error of writes to a target whose own file has the SQLite log, because the
// entry and the write would wait for each other. WithTx writes both in one transaction.
func sharedFile(t delivery.Target, cfg Config) error {
	s, ok := cfg.Storage.(interface {
		Driver() string
		Location() string
	})
	if !ok || s.Driver() != "sqlite" || t.File == "" {
		return nil
	}
	same := resolved(s.Location()) == resolved(t.File)
	if a, err := os.Stat(s.Location()); err == nil {
		if b, err := os.Stat(t.File); err == nil {
			same = same || os.SameFile(a, b)
		}
	}
	if same {
		return fmt.Errorf("bed: the transaction log and the data source %s are the same SQLite file, each would wait for the other's lock: give the log a file of its own, or write in a transaction of bedsql.WithTx", t.DataSource)
	}
	return nil
}

// resolved returns path without symbolic links, even if the file does not exist yet.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}
