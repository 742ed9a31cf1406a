package txlog_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

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

	// A wrapped driver does this before it runs a write.
	check(storage.Add(ctx, time.Minute, &txlog.Unit{
		ID: txlog.NewID(), DataSource: "orders",
		Statements: []txlog.Statement{{SQL: "INSERT INTO orders VALUES ('o-1')"}},
	}))
	units, err := storage.List(ctx, txlog.Filter{})
	check(err)
	for _, u := range units {
		fmt.Println(u.DataSource, u.Statements[0].SQL, u.Parked)
	}
	// Output: orders INSERT INTO orders VALUES ('o-1') false
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
