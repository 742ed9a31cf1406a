// Start-sqlx is a whole program that writes through bed with sqlx, under idempotency keys: a
// request that a client sends twice is applied once. It needs no server: log and stock are SQLite
// files in a directory that it makes and removes.
//
//	go run -C examples ./start-sqlx
//
// It takes apples from the stock, takes them again under the same key, takes too many, and takes
// some while the database is locked.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jmoiron/sqlx"

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

	storage, err := txlog.Open(ctx, "sqlite", "file:"+dir+"/log.db")
	check(err)
	defer storage.Close()
	check(sqlite.Register("bed-sqlite", bedsql.Config{Storage: storage, RetryTimeout: time.Second}))
	sqlx.BindDriver("bed-sqlite", sqlx.QUESTION) // sqlx chooses placeholders by the driver's name

	dsn := "file:" + dir + "/stock.db?bedDataSource=stock"
	db, err := sqlx.Open("bed-sqlite", dsn)
	check(err)
	defer db.Close()
	db.MustExecContext(ctx, `CREATE TABLE stock (article TEXT PRIMARY KEY, n INTEGER)`)
	db.MustExecContext(bedsql.Unlogged(ctx), `INSERT INTO stock VALUES ('apple', 10)`)

	apples := taken{Article: "apple", N: 3}
	take(ctx, db, "request-1", apples)
	take(ctx, db, "request-1", apples) // the client got no answer, and sends it again
	take(ctx, db, "request-2", taken{Article: "apple", N: 100})
	unlock := lock(dir + "/stock.db")
	take(ctx, db, "request-3", apples)
	unlock()

	// The job delivers the remaining writes. In production it is a process of its own, bed-job, or
	// a goroutine in Run.
	target, err := sqlite.Target(dsn)
	check(err)
	job, err := asyncjob.New(storage, asyncjob.Targets{"stock": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	check(err)
	defer job.Close()
	report, err := job.RunOnce(ctx)
	check(err)
	var left int
	check(db.GetContext(ctx, &left, `SELECT n FROM stock WHERE article = 'apple'`))
	fmt.Println("the job delivered", report.Delivered, "and", left, "apples are left")
}

// taken is a request's use of the stock.
type taken struct {
	Article string
	N       int
}

// take is refused if there are too few apples: under RequireRows the UPDATE must change one row.
func take(ctx context.Context, db *sqlx.DB, request string, t taken) {
	ctx, key := bedsql.WithIdempotencyKey(bedsql.RequireRows(ctx, 1), request)
	_, err := db.NamedExecContext(ctx, `UPDATE stock SET n = n - :n WHERE article = :article AND n >= :n`, t)
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered:
		fmt.Println(request, "done, answered before:", key.Replayed())
	case bedsql.OutcomeAccepted:
		fmt.Println(request, "accepted") // logged; the job delivers it. Never "failed, send it again"
	case bedsql.OutcomeRefused:
		fmt.Println(request, "refused:", err) // *bedsql.RowsError: nothing was taken
	case bedsql.OutcomeNotAccepted:
		fmt.Println(request, "try again later") // this call applied nothing: send it again under the same key
	default:
		fmt.Println(request, "unknown:", err) // send it again under the same key
	}
}

// lock is the fault: another client holds the database's write lock, until unlock.
func lock(path string) (unlock func()) {
	db, err := sqlx.Open("sqlite", "file:"+path+"?_txlock=immediate")
	check(err)
	tx, err := db.Beginx()
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
