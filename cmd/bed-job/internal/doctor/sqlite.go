package doctor

import (
	"context"
	"os"
	"strings"
)

// lookAtSQLite looks at a database as sessions of its DSN open it.
func lookAtSQLite(ctx context.Context, p *patient) {
	p.vars = map[string]string{}
	for _, name := range []string{"journal_mode", "synchronous", "busy_timeout", "query_only", "locking_mode"} {
		p.vars[name] = strings.ToLower(p.text(ctx, "PRAGMA "+name))
	}
	if strings.Contains(p.DSN, "mode=ro") || strings.Contains(p.DSN, "immutable=1") {
		p.vars["query_only"] = "1"
	}
	p.product, p.server, p.place = "SQLite", "sqlite "+p.Target.File, p.Target.File
	lookAtSettings(p)
	if f, err := os.OpenFile(p.Target.File, os.O_RDWR, 0); err == nil {
		_ = f.Close()
	} else if p.Target.File != "" {
		p.find("read-only", "the file may not be written: "+err.Error(), "chown and chmod it, and its directory, so that the accounts of the application and of the job may write both")
	}
}
