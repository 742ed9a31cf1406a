package bedsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// A whole program that writes through bed. For MySQL or PostgreSQL import
// bedsql/mysql or bedsql/postgres and change the two DSNs; nothing else differs.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	defer os.RemoveAll(dir)

	// The transaction log, in a database of its own.
	storage, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(dir, "log.db"))
	check(err)
	defer storage.Close()
	check(sqlite.Register("bed-sqlite", bedsql.Config{Storage: storage}))

	// From here on only the driver's name and bedDataSource are new.
	db, err := sql.Open("bed-sqlite", "file:"+filepath.Join(dir, "orders.db")+"?bedDataSource=orders")
	check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT)`)
	check(err)

	_, err = db.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, "o-1", "paid")
	switch {
	case err == nil:
		fmt.Println("done")
	case errors.Is(err, bedsql.ErrPending):
		fmt.Println("accepted") // logged; bed-job delivers it. Never "failed, send it again"
	case errors.Is(err, bedsql.ErrNotLogged):
		fmt.Println("try again later") // nothing was sent
	default:
		fmt.Println("refused:", err) // the database's own error, unchanged
	}
	// Output: done
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
