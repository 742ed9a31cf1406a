package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// withRig is an application with accounts in the log's database, and stock in its own.
type withRig struct {
	*rig // the stock
	// home is a pool of the database with the accounts, homeDB that database.
	home   *sql.DB
	homeDB testdb.DB
	bare   *sql.DB
	// seen: home is wrapped.
	seen bool
}

// newWith makes it: MySQL keeps the log in another schema, PostgreSQL in the same
// database, SQLite in the same file.
func newWith(t testing.TB, db testdb.DB, wrapped bool, change ...func(*bedsql.Config)) *withRig {
	t.Helper()
	log := db
	if db.Driver == testdb.DriverMySQL {
		log = freshLike(t, db)
	}
	w := &withRig{rig: newRigWithLog(t, freshLike(t, db), log, change...), homeDB: db, bare: db.Open(t), seen: wrapped}
	w.account(100, 100)
	for _, s := range []string{"CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)", "INSERT INTO account VALUES (1, 100)", "INSERT INTO account VALUES (2, 100)"} {
		if _, err := w.bare.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	if w.home = w.bare; wrapped {
		w.home = w.open(db.DSN)
	}
	return w
}

// eachWith runs f on every kind of database, with a transaction of the bare and of the
// wrapped driver, and either guarantee.
func eachWith(t *testing.T, f func(t *testing.T, w *withRig)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, wrapped := range map[string]bool{"bare": false, "wrapped": true} {
			if wrapped && db.Driver == testdb.DriverSQLite {
				continue // refused: each would wait for the other's lock
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
					f(t, newWith(t, freshLike(t, db), wrapped, guarantee))
				})
			})
		}
	})
}

// exactlyOnce reports the guarantee of the rig's writes.
func (w *withRig) exactlyOnce() bool { return w.cfg.Guarantee == bedsql.ExactlyOnce }

// begun is a transaction at home with a soft transaction made with it.
type begun struct {
	*withRig
	tx   *sql.Tx
	ctx  context.Context
	soft *bedsql.SoftTransaction
}

func (w *withRig) begun() *begun {
	w.t.Helper()
	tx, err := w.home.BeginTx(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback() })
	return w.with(tx, tx)
}

// with begins a soft transaction with what stands for tx.
func (w *withRig) with(tx *sql.Tx, as bedsql.DBTX) *begun {
	w.t.Helper()
	ctx, soft, err := bedsql.Begin(context.Background(), bedsql.WithTx(as))
	if err != nil {
		w.t.Fatal(err)
	}
	return &begun{w, tx, ctx, soft}
}

// takes takes one from account 1 at home.
func (b *begun) takes() {
	b.t.Helper()
	b.must(b.tx, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
}

// records records an increment of a row of the stock.
func (b *begun) records(id int) sql.Result {
	b.t.Helper()
	return b.stage(b.ctx, b.rig.wrapped, increment, 1, id)
}

func (b *begun) commit() {
	b.t.Helper()
	if err := b.tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *begun) end() error { return b.soft.End(context.Background()) }

// atHome returns the balance of account 1 at home.
func (w *withRig) atHome() (n int) {
	w.t.Helper()
	if err := w.bare.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// wantEmpty waits for the removals after the calls.
func (w *withRig) wantEmpty() {
	w.t.Helper()
	eventually(w.t, "the log is empty", func() bool { return w.left() == 0 })
}

// delivers runs a job that leaves young entries alone, as it does by default.
func (w *withRig) delivers() asyncjob.Report {
	w.t.Helper()
	return w.runOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour })
}

func wantNotCommitted(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrNotCommitted) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
		t.Errorf("End says %v (%v), want ErrNotCommitted", err, bedsql.OutcomeOf(err))
	}
}
