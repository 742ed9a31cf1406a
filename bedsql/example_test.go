package bedsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// A complete program that writes through bed. For MySQL or PostgreSQL, import
// bedsql/mysql or bedsql/postgres and change the two DSNs; nothing else differs.
func Example() {
	dir, remove := directory()
	defer remove()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// The transaction log, in a database of its own.
	storage, err := txlog.Open(ctx, "sqlite", "file:"+dir+"/log.db")
	check(err)
	defer storage.Close()
	check(sqlite.Register("bed-sqlite", bedsql.Config{Storage: storage}))

	// From here on only the driver's name and bedDataSource are new.
	db, err := sql.Open("bed-sqlite", "file:"+dir+"/orders.db?bedDataSource=orders")
	check(err)
	defer db.Close()

	_, err = db.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, "o-1", "paid")
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered:
		fmt.Println("done")
	case bedsql.OutcomeAccepted:
		fmt.Println("accepted") // logged; bed-job delivers it. Never "failed, send it again"
	case bedsql.OutcomeRefused:
		fmt.Println("refused:", err) // by the database, with its own error, or by bed
	case bedsql.OutcomeNotAccepted:
		fmt.Println("try again later") // nothing was applied, and nothing will be
	default:
		fmt.Println("unknown:", err) // it may have been applied: look before you send it again
	}
	// Output: done
}

// directory makes a directory for an example's databases, with the table orders in orders.db.
func directory() (path string, remove func()) {
	path, err := os.MkdirTemp("", "bed-example")
	check(err)
	db, err := sql.Open("sqlite", "file:"+path+"/orders.db")
	check(err)
	_, err = db.Exec(`CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT)`)
	check(err)
	check(db.Close())
	return path, func() { check(os.RemoveAll(path)) }
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
