package rig

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// WithRig is an application with accounts in the log's database, and stock in its own.
type WithRig struct {
	*Rig // the stock
	// Home is a pool of the database with the accounts, homeDB that database.
	Home   *sql.DB
	HomeDB testdb.DB
	Bare   *sql.DB
}

// NewWith makes it: MySQL keeps the log in another schema, PostgreSQL in the same
// database, SQLite in the same file.
func NewWith(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) *WithRig {
	t.Helper()
	log := db
	if db.Driver == testdb.DriverMySQL {
		log = testdb.NewLog(t, db.Driver)
	}
	w := &WithRig{Rig: NewWithLog(t, FreshLike(t, db), log, change...), HomeDB: db, Bare: db.Open(t)}
	w.Account(100, 100)
	for _, s := range []string{"CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)", "INSERT INTO account VALUES (1, 100)", "INSERT INTO account VALUES (2, 100)"} {
		if _, err := w.Bare.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	w.Home = w.Open(db.DSN)
	return w
}

// EachWith runs f on every kind of database, with either guarantee.
func EachWith(t *testing.T, f func(t *testing.T, w *WithRig)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			f(t, NewWith(t, testdb.NewLog(t, db.Driver), guarantee))
		})
	})
}

// ExactlyOnce reports the guarantee of the rig's writes.
func (w *WithRig) ExactlyOnce() bool { return w.Cfg.Guarantee == bedsql.ExactlyOnce }

// Begun is a transaction at home with a soft transaction made with it.
type Begun struct {
	*WithRig
	Tx   *sql.Tx
	Ctx  context.Context
	Soft *bedsql.SoftTransaction
}

func (w *WithRig) Begun() *Begun {
	w.T.Helper()
	tx, err := w.Home.BeginTx(context.Background(), nil)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = tx.Rollback() })
	return w.With(tx, tx)
}

// With begins a soft transaction with what stands for tx.
func (w *WithRig) With(tx *sql.Tx, as bedsql.DBTX) *Begun {
	w.T.Helper()
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.WithTx(as))
	if err != nil {
		w.T.Fatal(err)
	}
	return &Begun{w, tx, ctx, soft}
}

// Records records an increment of a row of the stock.
func (b *Begun) Records(id int) sql.Result {
	b.T.Helper()
	return b.Stage(b.Ctx, b.Rig.Wrapped, Increment, 1, id)
}

func (b *Begun) Commit() {
	b.T.Helper()
	if err := b.Tx.Commit(); err != nil {
		b.T.Fatal(err)
	}
}

func (b *Begun) End() error { return b.Soft.End(context.Background()) }

// AtHome returns the balance of account 1 at home.
func (w *WithRig) AtHome() (n int) {
	w.T.Helper()
	if err := w.Bare.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil {
		w.T.Fatal(err)
	}
	return n
}

// WantEmpty waits for the removals after the calls.
func (w *WithRig) WantEmpty() {
	w.T.Helper()
	Eventually(w.T, "the log is empty", func() bool { return w.Left() == 0 })
}

// Delivers runs a job that leaves young entries alone, as it does by default.
func (w *WithRig) Delivers() asyncjob.Report {
	w.T.Helper()
	return w.RunOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour })
}
