package txlog_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	_ "github.com/bedsql/bed/bedsql/sqlite" // its database can keep the log
	"github.com/bedsql/bed/txlog"
)

// Open the log once, and pass it to bedsql.Config. Its waiting entries can be listed.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	defer os.RemoveAll(dir)
	storage, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(dir, "log.db"))
	check(err)
	defer storage.Close()

	// The entries that wait for the job, or for an operator.
	units, err := storage.List(ctx, txlog.Filter{})
	check(err)
	for _, u := range units {
		fmt.Println(u.ID, u.DataSource, u.LastError)
	}
	fmt.Println(len(units), "entries")
	// Output: 0 entries
}

// The log's tables as files for goose.NewProvider, golang-migrate's iofs.New, or a directory of atlas.
func ExampleMigrations() {
	files, err := txlog.Migrations("postgres")
	check(err)
	names, err := fs.Glob(files, "*")
	check(err)
	fmt.Println(names)
	// Output: [00001_bed_log.up.sql 00002_bed_log.up.sql]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
