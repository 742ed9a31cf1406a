package doctor

import (
	"context"
	"os"
	"strings"
)

// sqliteFile is a SQLite database, as sessions of this DSN open it.
type sqliteFile struct{ *patient }

func (p sqliteFile) look(ctx context.Context) {
	p.vars = map[string]string{}
	for _, name := range []string{"journal_mode", "synchronous", "busy_timeout", "query_only", "locking_mode"} {
		p.vars[name] = strings.ToLower(p.text(ctx, "PRAGMA "+name))
	}
	p.product, p.server, p.place = "SQLite", "sqlite "+p.Target.File, p.Target.File
	p.settings("", 0)
	p.readOnly()
}

func (p sqliteFile) readOnly() {
	if p.vars["query_only"] == "1" || strings.Contains(p.DSN, "mode=ro") || strings.Contains(p.DSN, "immutable=1") {
		p.find("read-only", "the DSN opens the file for reading only: "+p.readOnlyMeans(), "remove mode=ro, immutable and query_only from the DSN")
		return
	}
	if p.Target.File == "" {
		return
	}
	info, err := os.Stat(p.Target.File)
	if err != nil {
		return
	}
	f, err := os.OpenFile(p.Target.File, os.O_RDWR, 0)
	if err != nil || info.Mode().Perm()&0o222 == 0 {
		p.find("read-only", "the file may not be written: "+p.readOnlyMeans(), "chown and chmod it, and its directory, so that the accounts of the application and of the job may write both")
	}
	if err == nil {
		_ = f.Close()
	}
}
