// Start-sql is a whole program that writes through bed with database/sql. It needs no server: log
// and orders are SQLite files in a directory that it makes and removes.
//
//	go run -C examples ./start-sql
//
// It places an order, another one while the database is locked, and the first one again. For MySQL
// or PostgreSQL import bedsql/mysql or bedsql/postgres and change the DSNs.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

func main() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bed-start")
	check(err)
	defer os.RemoveAll(dir)

	// The transaction log, in a database of its own.
	storage, err := txlog.Open(ctx, "sqlite", "file:"+dir+"/log.db")
	check(err)
	defer storage.Close()
	check(sqlite.Register("bed-sqlite", bedsql.Config{Storage: storage}))

	// From here on only the driver's name and bedDataSource are new.
	dsn := "file:" + dir + "/orders.db?bedDataSource=orders"
	db, err := sql.Open("bed-sqlite", dsn)
	check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT)`)
	check(err)

	place(ctx, db, "o-1")
	unlock := lock(dir + "/orders.db")
	place(ctx, db, "o-2")
	unlock()
	place(ctx, db, "o-1")

	// The job delivers the remaining writes. In production it is a process of its own, bed-job, or
	// a goroutine in Run.
	target, err := sqlite.Target(dsn)
	check(err)
	job, err := asyncjob.New(storage, asyncjob.Targets{"orders": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	check(err)
	defer job.Close()
	report, err := job.RunOnce(ctx)
	check(err)
	var orders int
	check(db.QueryRowContext(ctx, `SELECT COUNT(*) FROM orders`).Scan(&orders))
	fmt.Println("the job delivered", report.Delivered, "and there are", orders, "orders")
}

func place(ctx context.Context, db *sql.DB, id string) {
	_, err := db.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, id, "paid")
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered:
		fmt.Println(id, "done")
	case bedsql.OutcomeAccepted:
		fmt.Println(id, "accepted") // logged; the job delivers it. Never "failed, send it again"
	case bedsql.OutcomeRefused:
		fmt.Println(id, "refused:", err) // by the database, with its own error, or by bed
	case bedsql.OutcomeNotAccepted:
		fmt.Println(id, "try again later") // nothing was applied, and nothing will be
	default:
		fmt.Println(id, "unknown:", err) // it may have been applied: look before you send it again
	}
}

// lock is the fault: another client holds the database's write lock, until unlock.
func lock(path string) (unlock func()) {
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	check(err)
	tx, err := db.Begin()
	check(err)
	return func() {
		check(tx.Rollback())
		check(db.Close())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
