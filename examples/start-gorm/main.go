// Start-gorm is a whole program that writes to two databases through bed with gorm, in a staged
// soft transaction: an order here, its debt there. It needs no server: log, orders and ledger are
// SQLite files in a directory that it makes and removes.
//
//	go run -C examples ./start-gorm
//
// It places an order, another one while the ledger is locked, and the first one again.
// gorm.io/driver/mysql and gorm.io/driver/postgres use DriverName and DSN in the same way.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	gormsqlite "github.com/libtnb/sqlite" // gorm's SQLite without cgo
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// order and debt have keys from the application. The keys exist before any write, so a second
// delivery meets the row.
type order struct {
	ID      string `gorm:"primaryKey"`
	Article string
}

type debt struct {
	OrderID string `gorm:"primaryKey"`
	Cents   int64
}

func main() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bed-start")
	check(err)
	defer os.RemoveAll(dir)

	storage, err := txlog.Open(ctx, "sqlite", "file:"+dir+"/log.db")
	check(err)
	defer storage.Close()
	cfg := bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, RetryTimeout: time.Second}
	check(sqlite.Register("bed-sqlite", cfg))

	const wait = "&_pragma=busy_timeout(100)" // milliseconds; without it gorm has SQLite wait for 5 s
	ordersDSN := "file:" + dir + "/orders.db?bedDataSource=orders" + wait
	ledgerDSN := "file:" + dir + "/ledger.db?bedDataSource=ledger" + wait
	orders, closeOrders := open(ordersDSN, &order{})
	defer closeOrders()
	ledger, closeLedger := open(ledgerDSN, &debt{})
	defer closeLedger()

	answer("o-1", place(ctx, orders, ledger, "o-1"))
	unlock := lock(dir + "/ledger.db")
	answer("o-2", place(ctx, orders, ledger, "o-2"))
	unlock()
	answer("o-1", place(ctx, orders, ledger, "o-1"))

	// The job delivers the remaining writes. In production it is a process of its own, bed-job, or
	// a goroutine in Run.
	toOrders, err := sqlite.Target(ordersDSN)
	check(err)
	toLedger, err := sqlite.Target(ledgerDSN)
	check(err)
	targets := asyncjob.Targets{"orders": toOrders, "ledger": toLedger}
	job, err := asyncjob.New(storage, targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	check(err)
	defer job.Close()
	report, err := job.RunOnce(ctx)
	check(err)
	fmt.Println("the job delivered", report.Delivered, "and there are", count(orders, &order{}), "orders and", count(ledger, &debt{}), "debts")
}

func open(dsn string, model any) (db *gorm.DB, closing func()) {
	db, err := gorm.Open(gormsqlite.New(gormsqlite.Config{DriverName: "bed-sqlite", DSN: dsn}),
		&gorm.Config{SkipDefaultTransaction: true, Logger: logger.Discard})
	check(err)
	check(db.AutoMigrate(model))
	pool, err := db.DB()
	check(err)
	return db, func() { check(pool.Close()) }
}

// place logs both rows, or neither of them, even if the process ends in between. Each database may
// still refuse its part; with soft.Compensation the other part would then be compensated.
func place(ctx context.Context, orders, ledger *gorm.DB, id string) error {
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	defer soft.Discard() // after End it does nothing
	if err := orders.WithContext(ctx).Create(&order{ID: id, Article: "apple"}).Error; err != nil {
		return err
	}
	if err := ledger.WithContext(ctx).Create(&debt{OrderID: id, Cents: 250}).Error; err != nil {
		return err
	}
	return soft.End(ctx)
}

func answer(id string, err error) {
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered:
		fmt.Println(id, "done")
	case bedsql.OutcomeAccepted:
		fmt.Println(id, "accepted") // logged; the job delivers it. Never "failed, send it again"
	case bedsql.OutcomePartlyRefused:
		fmt.Println(id, "partly refused:", err) // one row is written, or will be; the other is parked
	case bedsql.OutcomeRefused:
		fmt.Println(id, "refused:", err) // nothing is written; what was refused is parked, for an operator to decide
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

func count(db *gorm.DB, model any) (n int64) {
	check(db.Model(model).Count(&n).Error)
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
