package bedsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// shop opens two wrapped databases with a common transaction log: orders with the table orders,
// and stock with the table stock and 10 apples.
func shop(name string) (orders, stock *sql.DB, closing func()) {
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	storage, err := txlog.Open(context.Background(), "sqlite", "file:"+filepath.Join(dir, "log.db"))
	check(err)
	check(sqlite.Register(name, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce}))
	open := func(dataSource string, statements ...string) *sql.DB {
		db, err := sql.Open(name, "file:"+filepath.Join(dir, dataSource+".db")+"?bedDataSource="+dataSource)
		check(err)
		for _, s := range statements {
			_, err := db.ExecContext(bedsql.Unlogged(context.Background()), s)
			check(err)
		}
		return db
	}
	orders = open("orders", `CREATE TABLE orders (id TEXT PRIMARY KEY, article TEXT, n INTEGER)`)
	stock = open("stock", `CREATE TABLE stock (article TEXT PRIMARY KEY, n INTEGER)`, `INSERT INTO stock VALUES ('apple', 10)`)
	return orders, stock, func() {
		check(orders.Close())
		check(stock.Close())
		check(storage.Close())
		check(os.RemoveAll(dir))
	}
}

func apples(stock *sql.DB) (n int) {
	check(stock.QueryRow(`SELECT n FROM stock WHERE article = 'apple'`).Scan(&n))
	return n
}

// Writes for several databases. bed expects each to arrive in the end, and a failed write does not
// stop the following ones.
func ExampleBegin() {
	orders, stock, closing := shop("bed-example-begin")
	defer closing()

	ctx, soft, err := bedsql.Begin(context.Background())
	check(err)
	_, err = orders.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?)`, "o-1", "apple", 3)
	check(err) // the order is logged and written
	_, err = stock.ExecContext(ctx, `UPDATE stock SET no_such_column = 1`)
	check(err) // refused, which End reports
	_, err = stock.ExecContext(ctx, `UPDATE stock SET n = n - ? WHERE article = ?`, 3, "apple")
	check(err)

	err = soft.End(context.Background())
	fmt.Println(bedsql.OutcomeOf(err)) // delivered, accepted or, as here:
	var end *bedsql.EndError
	if errors.As(err, &end) {
		fmt.Println("delivered:", end.Delivered)
		for _, refused := range end.Refused() {
			fmt.Println("parked for an operator:", refused.DataSource)
		}
	}
	fmt.Println("apples:", apples(stock))
	// Output:
	// partly refused
	// delivered: [orders stock]
	// parked for an operator: stock
	// apples: 7
}

// Before End nothing has happened in any of the databases, and a crash leaves nothing behind.
// After End's one write to the log everything arrives.
func ExampleStaged() {
	orders, stock, closing := shop("bed-example-staged")
	defer closing()

	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	check(err)
	defer soft.Discard() // after End it does nothing
	_, err = orders.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?)`, "o-1", "apple", 3)
	check(err)
	taken, err := stock.ExecContext(ctx, `UPDATE stock SET n = n - ? WHERE article = ?`, 3, "apple")
	check(err)
	_, err = taken.RowsAffected()
	fmt.Println("apples before End:", apples(stock), errors.Is(err, bedsql.ErrStaged))

	err = soft.End(context.Background())
	fmt.Println(bedsql.OutcomeOf(err)) // or accepted: the job delivers what is pending
	rows, err := taken.RowsAffected()
	fmt.Println("apples after End:", apples(stock), rows, err)
	// Output:
	// apples before End: 10 true
	// delivered
	// apples after End: 7 1 <nil>
}

// A client without an answer sends its request again, under its own key. The request is applied
// once and gets the same answer.
func ExampleWithIdempotencyKey() {
	_, stock, closing := shop("bed-example-key")
	defer closing()

	take := func(request string, n int) {
		ctx, key := bedsql.WithIdempotencyKey(context.Background(), request)
		res, err := stock.ExecContext(ctx, `UPDATE stock SET n = n - ? WHERE article = ?`, n, "apple")
		if errors.Is(err, bedsql.ErrKeyReused) {
			fmt.Println("another request has this key")
			return
		}
		check(err)
		rows, err := res.RowsAffected()
		check(err)
		fmt.Println("rows:", rows, "replayed:", key.Replayed(), "apples:", apples(stock))
	}
	take("request-7", 3)
	take("request-7", 3)
	take("request-7", 4)
	take("request-8", 4)
	// Output:
	// rows: 1 replayed: false apples: 7
	// rows: 1 replayed: true apples: 7
	// another request has this key
	// rows: 1 replayed: false apples: 3
}

// A write that need not survive an outage goes straight to the driver, also inside a soft
// transaction: unlogged, unretried, and with the driver's error.
func ExampleUnlogged() {
	_, stock, closing := shop("bed-example-skip")
	defer closing()

	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	check(err)
	_, err = stock.ExecContext(ctx, `UPDATE stock SET n = n - 3`)
	check(err)
	res, err := stock.ExecContext(bedsql.Unlogged(ctx), `INSERT INTO stock VALUES ('pear', 5)`)
	check(err)
	rows, err := res.RowsAffected()
	fmt.Println("rows at once:", rows, err)
	soft.Discard()
	fmt.Println("apples:", apples(stock))
	// Output:
	// rows at once: 1 <nil>
	// apples: 10
}

// For a database, an UPDATE that matches no row is not an error. Under RequireRows it is refused.
func ExampleRequireRows() {
	_, stock, closing := shop("bed-example-rows")
	defer closing()

	take := func(n int) {
		ctx := bedsql.RequireRows(context.Background(), 1)
		_, err := stock.ExecContext(ctx, `UPDATE stock SET n = n - ? WHERE article = ? AND n >= ?`, n, "apple", n)
		fmt.Println(bedsql.OutcomeOf(err), apples(stock), err)
	}
	take(7)
	take(7)
	// Output:
	// delivered 3 <nil>
	// refused 3 bed: the write is refused: required exactly 1 row, changed 0
}
