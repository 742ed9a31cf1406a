package localtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// With Galera any statement may learn that its transaction was rolled back:
// here the proxy rolls it back, and answers for the server.
func TestTransactionLossReportedToAQueryIsKept(t *testing.T) {
	t.Parallel()
	query := func(text string, args ...any) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			rows, err := tx.Query(text, args...)
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
			}
			return rows.Err()
		}
	}
	for name, c := range map[string]struct {
		fault func([]byte) bool
		ask   func(*sql.Tx) error
	}{
		"at the prepare of a SELECT with parameters": {testproxy.Text("SELECT balance"), query("SELECT balance FROM account WHERE id = ?", 1)},
		"at its execution":                           {testproxy.MySQLExecute, query("SELECT balance FROM account WHERE id = ?", 1)},
		"at a SELECT in text":                        {testproxy.Text("SELECT balance"), query("SELECT balance FROM account WHERE id = 1")},
		"at the prepare of a write": {testproxy.Text("UPDATE"), func(tx *sql.Tx) error {
			_, err := tx.Exec(rig.SetBalance, 11, 1)
			return err
		}},
		"at Prepare": {testproxy.Text("UPDATE"), func(tx *sql.Tx) error {
			_, err := tx.Prepare(rig.SetBalance)
			return err
		}},
		"at the Prepare of a SELECT": {testproxy.Text("SELECT balance"), func(tx *sql.Tx) error {
			_, err := tx.Prepare("SELECT balance FROM account WHERE id = ?")
			return err
		}},
	} {
		for guarantee, change := range map[string]func(*bedsql.Config){"at least once": func(*bedsql.Config) {}, "exactly once": rig.ExactlyOnce} {
			t.Run(name+" "+guarantee, func(t *testing.T) {
				t.Parallel()
				r, p := rig.NewBehindProxy(t, testdb.MySQL(t), change)
				r.Wrapped.SetMaxOpenConns(1)
				r.ReceiptTable()
				r.Account(1, 2)
				tx := r.Begin()
				r.Must(tx, "UPDATE account SET balance = 10 WHERE id = 1")
				p.Replace(c.fault, testproxy.MySQLQuery("ROLLBACK"), testproxy.MySQLError(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction"))
				if err := c.ask(tx); err == nil {
					t.Fatal("it succeeded")
				}
				// The application takes no notice.
				if err := r.Fails(tx, "UPDATE account SET balance = 20 WHERE id = 2"); !errors.Is(err, bedsql.ErrTransactionLost) {
					t.Errorf("the next write: %v, want ErrTransactionLost", err)
				}
				if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
					t.Errorf("Commit: %v, want ErrTransactionLost", err)
				}
				r.WantBalances(1, 2)
				r.WantNoLog()
			})
		}
	}
}

// Rows come before their error.
func TestTransactionLostDuringAQueryIsLost(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	for name, args := range map[string][]any{"in text": nil, "prepared": {1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, rig.FreshLike(t, db), rig.ExactlyOnce)
			r.Account(1, 2)
			r.Exec("CREATE TABLE big (id INT PRIMARY KEY, pad VARCHAR(2000))", "INSERT INTO big VALUES (1, REPEAT('x', 2000))")
			for rows := 1; rows < 20000; rows *= 2 {
				r.Exec(fmt.Sprintf("INSERT INTO big SELECT id + %d, pad FROM big", rows))
			}
			tx := r.Begin()
			r.Must(tx, rig.SetBalance, 10, 1)
			var id int
			if err := tx.QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
				t.Fatal(err)
			}
			text := "SELECT id, pad FROM big WHERE 1 = 1"
			if args != nil {
				text = "SELECT id, pad FROM big WHERE 1 = ?"
			}
			rows, err := tx.Query(text, args...)
			if err != nil {
				t.Fatal(err)
			}
			if !rows.Next() {
				t.Fatal("no rows")
			}
			// The server stands at a full socket.
			if _, err := r.Bare.ExecContext(context.Background(), "KILL QUERY ?", id); err != nil {
				t.Fatal(err)
			}
			types, err := rows.ColumnTypes()
			if err != nil || types[1].DatabaseTypeName() != "VARCHAR" {
				t.Errorf("types %v, %v", types, err)
			}
			for rows.Next() {
			}
			if rows.Err() == nil {
				t.Fatal("all rows came")
			}
			_ = rows.Close()
			// This one ended the statement alone, and the wrapper has asked.
			r.Must(tx, rig.SetBalance, 20, 2)
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
			r.WantBalances(10, 20)
		})
	}
}

// Like a Galera node, the procedure ends the transaction after its first rows have arrived.
func TestTransactionGoneAfterItsRowsIsLost(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t), rig.ExactlyOnce)
	r.Account(1, 2)
	r.Exec("CREATE PROCEDURE gone() BEGIN SELECT 1 UNION SELECT 2; ROLLBACK; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'; END")
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	rows, err := tx.Query("CALL gone()")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			n++
		}
	}
	if n != 2 || rows.Err() == nil {
		t.Fatalf("%d rows, %v; want 2 and an error", n, rows.Err())
	}
	_ = rows.Close()
	if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the next write: %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("Commit: %v, want ErrTransactionLost", err)
	}
	r.WantBalances(1, 2)
}

func TestReadOnlyTransactionDoesNotLookForReceipts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(7)
		wrapped := r.Wrapped
		if db.Driver != testdb.DriverSQLite {
			limited, _ := r.WithoutCreate()
			wrapped = r.Open(limited.DSN)
		}
		for range 2 {
			tx, err := wrapped.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := tx.QueryRow("SELECT balance FROM account").Scan(&n); err != nil || n != 7 {
				t.Error(n, err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
		if _, err := r.Bare.Exec("SELECT 1 FROM bed_receipt"); err == nil {
			t.Error("it made the table of receipts")
		}
	})
}

// Galera's certification may fail at the implicit COMMIT of DDL. The statement then returns that
// error, and no write is committed.
func TestAnImplicitCommitThatFailedIsNoDelivery(t *testing.T) {
	t.Parallel()
	for guarantee, change := range map[string]func(*bedsql.Config){"at least once": func(*bedsql.Config) {}, "exactly once": rig.ExactlyOnce} {
		t.Run(guarantee, func(t *testing.T) {
			t.Parallel()
			r, p := rig.NewBehindProxy(t, testdb.MySQL(t), change)
			r.ReceiptTable()
			r.Account(1, 2)
			tx := r.Begin()
			r.Must(tx, rig.SetBalance, 10, 1)
			p.Replace(testproxy.Text("CREATE TABLE other"), testproxy.MySQLQuery("ROLLBACK"), testproxy.MySQLError(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction"))
			r.Fails(tx, "CREATE TABLE other (id INT)")
			_ = tx.Rollback()
			r.Drain(r.Job())
			r.WantBalances(10, 2)
		})
	}
}

// An error of one of bed's own statements would announce the end of the transaction, and the caller
// would not see it.
func TestOnlyReceiptsRunInACallersTransaction(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce)
		r.Account(1)
		var begun atomic.Bool
		var asked atomic.Int64
		p.Count(func(m []byte) bool {
			if begun.Load() && !testproxy.Text("bed_receipt")(m) && (testproxy.Text("SELECT")(m) || testproxy.Text("SHOW")(m) || testproxy.Text("@@")(m)) {
				asked.Add(1)
			}
			if testproxy.Text("START TRANSACTION")(m) || testproxy.Text("begin")(m) {
				begun.Store(true)
			}
			return false
		})
		tx := r.Begin() // the first of all on this pool
		r.Must(tx, "UPDATE account SET balance = 2 WHERE id = 1")
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if !begun.Load() || asked.Load() > 0 {
			t.Errorf("%d questions of ours inside the transaction (begun: %t)", asked.Load(), begun.Load())
		}
		r.WantBalances(2)
	})
}
