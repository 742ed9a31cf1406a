package session

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// set_config with true as its last argument is SET LOCAL: the tables that the
// transaction names from then on are others, the one of receipts too.
func TestFunctionChangingSettingsKeepsTheReceiptInPlace(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"SET LOCAL search_path = tenant", "SELECT set_config('search_path', 'tenant', true)"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			t.Run("the schema has receipts of its own", func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, testdb.Postgres(t), rig.ExactlyOnce)
				r.Exec("CREATE SCHEMA tenant", "CREATE TABLE tenant.item (id INT PRIMARY KEY, n INT)")
				receipts, err := attempt.ReceiptSchema(r.DB.Driver)
				if err != nil {
					t.Fatal(err)
				}
				conn, err := r.Bare.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range []string{"SET search_path = tenant", receipts, "RESET search_path"} {
					r.Must(conn, s)
				}
				_ = conn.Close()
				tx := r.Begin()
				ask(r, tx, how)
				r.Must(tx, "INSERT INTO item VALUES (1, 1)")
				p.CutAfter(testproxy.Text("commit"))
				err = tx.Commit()
				if n := r.Count("SELECT COUNT(*) FROM tenant.item"); (err == nil) != (n == 1) && !errors.Is(err, bedsql.ErrPending) {
					t.Errorf("told %v, and %d rows are there", err, n)
				}
			})
			t.Run("the schema has none", func(t *testing.T) {
				r := rig.New(t, testdb.Postgres(t), rig.ExactlyOnce)
				r.Account(1)
				r.Exec("CREATE SCHEMA tenant", "CREATE TABLE tenant.item (id INT PRIMARY KEY)")
				other, tx := r.Begin(), r.Begin()
				r.Must(other, rig.SetBalance, 5, 1)
				ask(r, tx, how)
				r.Must(tx, "INSERT INTO item VALUES (1)")
				if err := tx.Commit(); err != nil {
					t.Errorf("Commit: %v", err)
				}
				r.Must(other, rig.SetBalance, 6, 1)
				if err := other.Commit(); err != nil {
					t.Errorf("Commit of another: %v", err)
				}
			})
		})
	}
}

// ask runs a statement as a query, and reads it to its end.
func ask(r *rig.Rig, on *sql.Tx, text string) {
	r.T.Helper()
	rows, err := on.QueryContext(context.Background(), text)
	if err != nil {
		r.T.Fatalf("%s: %v", text, err)
	}
	for rows.Next() {
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		r.T.Fatalf("%s: %v", text, err)
	}
}

// PostgreSQL refuses what follows an error in a transaction until a savepoint is
// gone back to. Then the transaction goes on, and its COMMIT may
// take effect without an answer.
func TestTransactionContinuedAfterAnErrorIsLogged(t *testing.T) {
	t.Parallel()
	raw := func(text string) func(r *rig.Rig, c *sql.Conn) {
		return func(r *rig.Rig, c *sql.Conn) {
			r.T.Helper()
			if err := c.Raw(func(inner any) error {
				_, err := inner.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
				return err
			}); err != nil {
				r.T.Fatalf("%s: %v", text, err)
			}
		}
	}
	text := func(text string) func(r *rig.Rig, c *sql.Conn) {
		return func(r *rig.Rig, c *sql.Conn) { r.T.Helper(); r.Must(c, text) }
	}
	for name, how := range map[string]struct{ save, back func(r *rig.Rig, c *sql.Conn) }{
		"by itself":                  {text("SAVEPOINT s"), text("ROLLBACK TO SAVEPOINT s")},
		"with others in a text":      {text("SAVEPOINT s"), text("ROLLBACK TO SAVEPOINT s; RELEASE SAVEPOINT s")},
		"on the driver's connection": {text("SAVEPOINT s"), raw("ROLLBACK TO SAVEPOINT s")},
		"to one that was set unseen": {text("SAVEPOINT s; SELECT 1"), text("ROLLBACK TO SAVEPOINT s")},
		"to one that the driver set": {raw("SAVEPOINT s"), text("ROLLBACK TO SAVEPOINT s")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := rig.NewBehindProxy(t, testdb.Postgres(t), rig.NoSyncRetry)
			r.Account(1, 2)
			c := r.Conn()
			tx, err := c.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Must(tx, rig.SetBalance, 10, 1)
			how.save(r, c)
			r.Fails(c, "INSERT INTO account VALUES (1, 1)")
			how.back(r, c)
			p.CutAfter(testproxy.Text("commit"))
			if err := tx.Commit(); !errors.Is(err, bedsql.ErrPending) {
				t.Errorf("COMMIT: %v, want ErrPending; the balance is %d, the log has %d", err, r.Balance(1), len(r.Logs()))
			}
		})
	}
}

// MySQL's SET TRANSACTION applies to the next transaction. That must be the application's, not one
// of bed's own questions.
func TestSetTransactionIsForTheApplicationsNextTransaction(t *testing.T) {
	t.Parallel()
	for name, guarantee := range map[string]bedsql.Guarantee{"at least once": bedsql.AtLeastOnce, "exactly once": bedsql.ExactlyOnce} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.MySQL(t), func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.Account(1)
			c := r.Conn()
			r.Must(c, "SET TRANSACTION READ ONLY")
			tx, err := c.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			err = r.Fails(tx, "UPDATE account SET balance = 7 WHERE id = 1")
			const readOnly = 1792 // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
			if my := new(mysql.MySQLError); !errors.As(err, &my) || my.Number != readOnly {
				t.Errorf("a write in a read-only transaction: %v", err)
			}
			r.WantBalances(1)
		})
	}
}
