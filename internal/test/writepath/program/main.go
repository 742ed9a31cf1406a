// Command program writes one plain INSERT, and the coverage of that INSERT alone.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"path/filepath"
	"runtime/coverage"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3] == "once"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, counters string, once bool) error {
	storage, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(dir, "log.db"))
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	cfg := bedsql.Config{Storage: storage}
	if once {
		cfg.Guarantee = bedsql.ExactlyOnce
	}
	if err := sqlite.Register("bed-sqlite", cfg); err != nil {
		return err
	}
	db, err := sql.Open("bed-sqlite", "file:"+filepath.Join(dir, "t.db")+"?bedDataSource=t")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for i, text := range []string{`CREATE TABLE t (n INTEGER)`, `INSERT INTO t VALUES (1)`, `INSERT INTO t VALUES (2)`} {
		if i == 2 { // the connection is dialled, and the table of receipts found
			if err := coverage.ClearCounters(); err != nil {
				return err
			}
		}
		if _, err := db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	if err := db.Close(); err != nil { // what follows the INSERT
		return err
	}
	return coverage.WriteCountersDir(counters)
}
