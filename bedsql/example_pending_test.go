package bedsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// store is a wrapped database with the table stock and 10 apples, its log, and its job.
type store struct {
	*sql.DB
	dir string
	log *txlog.SQLStorage
	job *asyncjob.Job
}

// openStore opens one. Its calls leave a failed attempt to the job at once.
func openStore(name string) *store {
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	s := &store{dir: dir}
	s.log, err = txlog.Open(context.Background(), "sqlite", "file:"+s.file("log"))
	check(err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	check(sqlite.Register(name, bedsql.Config{Storage: s.log, Guarantee: bedsql.ExactlyOnce, NoSyncRetry: true, Logger: quiet}))
	dsn := "file:" + s.file("stock") + "?_pragma=busy_timeout(0)&bedDataSource=stock"
	s.DB, err = sql.Open(name, dsn)
	check(err)
	for _, text := range []string{`CREATE TABLE stock (article TEXT PRIMARY KEY, n INTEGER)`, `INSERT INTO stock VALUES ('apple', 10)`} {
		_, err := s.ExecContext(bedsql.Unlogged(context.Background()), text)
		check(err)
	}
	target, err := sqlite.Target(dsn)
	check(err)
	s.job, err = asyncjob.New(s.log, asyncjob.Targets{"stock": target},
		asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Logger: quiet})
	check(err)
	return s
}

func (s *store) file(name string) string { return filepath.Join(s.dir, name+".db") }

// lock locks the database, as another program would.
func (s *store) lock() (unlock func()) {
	other, err := sql.Open("sqlite", "file:"+s.file("stock")+"?_txlock=immediate")
	check(err)
	tx, err := other.Begin()
	check(err)
	return func() {
		check(tx.Rollback())
		check(other.Close())
	}
}

func (s *store) close() {
	check(s.job.Close())
	check(s.DB.Close())
	check(s.log.Close())
	check(os.RemoveAll(s.dir))
}

// What an error means for the caller.
func ExampleOutcomeOf() {
	stock := openStore("bed-example-outcome")
	defer stock.close()

	write := func(ctx context.Context, text string) {
		_, err := stock.ExecContext(ctx, text)
		fmt.Println(bedsql.OutcomeOf(err))
	}
	write(context.Background(), `INSERT INTO stock VALUES ('pear', 5)`)
	write(context.Background(), `INSERT INTO stock VALUES ('pear', 7)`) // a duplicate key
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	write(gone, `INSERT INTO stock VALUES ('plum', 1)`) // before anything was logged
	unlock := stock.lock()
	write(context.Background(), `INSERT INTO stock VALUES ('plum', 1)`) // the job delivers it
	unlock()
	// Output:
	// delivered
	// refused
	// not accepted
	// accepted
}

// The job delivers an accepted write later. Await waits for that.
func ExampleAwait() {
	stock := openStore("bed-example-await")
	defer stock.close()

	unlock := stock.lock()
	_, err := stock.Exec(`UPDATE stock SET n = n - 3 WHERE article = 'apple'`)
	unlock()
	var pending *bedsql.PendingError
	fmt.Println("pending:", errors.As(err, &pending), apples(stock.DB))

	_, err = stock.job.RunOnce(context.Background()) // bed-job does it on its schedule
	check(err)
	state, err := bedsql.Await(context.Background(), stock.log, pending.EntryID)
	fmt.Println(state, err, apples(stock.DB))
	// Output:
	// pending: true 10
	// delivered <nil> 7
}

// Under a key, a later write does not overtake an earlier one that is still pending.
func ExampleWithOrderKey() {
	stock := openStore("bed-example-order")
	defer stock.close()

	ctx := bedsql.WithOrderKey(context.Background(), "apple")
	unlock := stock.lock()
	_, err := stock.ExecContext(ctx, `UPDATE stock SET n = 20 WHERE article = 'apple'`)
	unlock()
	fmt.Println(bedsql.OutcomeOf(err))
	_, err = stock.ExecContext(ctx, `UPDATE stock SET n = 30 WHERE article = 'apple'`)
	var behind *bedsql.BehindError
	fmt.Println(bedsql.OutcomeOf(err), errors.As(err, &behind), apples(stock.DB))

	for range 2 { // a round of the job for each
		_, err = stock.job.RunOnce(context.Background())
		check(err)
	}
	fmt.Println(apples(stock.DB))
	// Output:
	// accepted
	// accepted true 10
	// 30
}

// If a database refuses its part, the other parts are compensated.
func ExampleSoftTransaction_Compensation() {
	orders, stock, closing := shop("bed-example-compensation")
	defer closing()

	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
	check(err)
	_, err = orders.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?)`, "o-1", "apple", 11)
	check(err)
	_, err = orders.ExecContext(soft.Compensation(ctx), `DELETE FROM orders WHERE id = ?`, "o-1")
	check(err)
	_, err = stock.ExecContext(bedsql.RequireRows(ctx, 1), `UPDATE stock SET n = n - ? WHERE article = ? AND n >= ?`, 11, "apple", 11)
	check(err)

	err = soft.End(context.Background())
	var n int
	check(orders.QueryRow(`SELECT COUNT(*) FROM orders`).Scan(&n))
	fmt.Println(bedsql.OutcomeOf(err), n, apples(stock))
	// Output: compensated 0 10
}

// A transaction of the application's own, on the log's server: its rows and the writes for other
// databases are accepted by one COMMIT.
func ExampleWithTx() {
	stock := openStore("bed-example-withtx")
	defer stock.close()
	payments, err := sql.Open("bed-example-withtx", "file:"+stock.file("log")+"?bedDataSource=payments") // SQLite: the log's own file
	check(err)
	defer payments.Close()
	_, err = payments.Exec(`CREATE TABLE payments (id TEXT PRIMARY KEY, cents INTEGER)`)
	check(err)

	tx, err := payments.BeginTx(context.Background(), nil)
	check(err)
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.WithTx(tx))
	check(err)
	_, err = tx.ExecContext(ctx, `INSERT INTO payments VALUES ('p-1', 300)`) // runs now
	check(err)
	_, err = stock.ExecContext(ctx, `UPDATE stock SET n = n - 3 WHERE article = 'apple'`) // recorded
	check(err)
	check(tx.Commit())
	err = soft.End(context.Background()) // without it, the job delivers the recorded writes
	fmt.Println(bedsql.OutcomeOf(err), apples(stock.DB))
	// Output: delivered 7
}
