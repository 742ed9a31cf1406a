package localtx

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sqlitedriver "modernc.org/sqlite"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// wantAnswered checks the state after the database has refused COMMIT: the log is empty, no write
// is pending, and the connection back in the pool has no transaction.
func wantAnswered(r *rig.Rig, err error) {
	r.T.Helper()
	if err == nil {
		r.T.Fatal("Commit succeeded")
	}
	if errors.Is(err, bedsql.ErrPending) || errors.Is(err, bedsql.ErrNotLogged) {
		r.T.Errorf("the error is %v, want the driver's own", err)
	}
	r.WantNoLog()
	if report := r.RunOnce(); report.Claimed != 0 {
		r.T.Errorf("the job found something to deliver: %v", report)
	}
	counted := &r.Counters.Refused
	if bedsql.OutcomeOf(err) == bedsql.OutcomeNotAccepted { // sent again, it may commit
		counted = &r.Counters.NotLogged
	}
	if n := counted.Load(); n != 1 {
		r.T.Errorf("%d writes were counted as %v, want 1", n, bedsql.OutcomeOf(err))
	}
}

func TestADeferredConstraintIsTheCallers(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(testing.TB) testdb.DB{
		testdb.DriverPostgres: testdb.Postgres,
		testdb.DriverSQLite: func(t testing.TB) testdb.DB {
			return rig.WithParam(testdb.SQLite(t), "_pragma", "foreign_keys(1)")
		},
	} {
		for form, commit := range map[string]func(*rig.Rig) error{
			"Commit": func(r *rig.Rig) error {
				tx := r.Begin()
				r.Must(tx, rig.SetBalance, 10, 1)
				r.Must(tx, "INSERT INTO child VALUES (1, 99)")
				return tx.Commit()
			},
		} {
			t.Run(name+" "+form, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, make(t))
				r.Wrapped.SetMaxOpenConns(1)
				r.Account(1)
				r.Exec("CREATE TABLE child (id INT PRIMARY KEY, account INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
				err := commit(r)
				wantAnswered(r, err)
				switch e := err.(type) {
				case *pgconn.PgError:
					if e.Code != "23503" {
						t.Errorf("the error is %v, want a foreign key's", e)
					}
				case *sqlitedriver.Error:
					if e.Code() != 787 {
						t.Errorf("the error is %v, want a foreign key's", e)
					}
				default:
					t.Errorf("the error is a %T, want the driver's own", err)
				}
				r.WantBalances(1)
				r.Must(r.Wrapped, rig.SetBalance, 11, 1)
				r.WantBalances(11)
			})
		}
	}
}

func TestASerializationFailureAtCommitIsTheCallers(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t))
	r.Account(1, 2)
	begin := func() *sql.Tx {
		tx, err := r.Wrapped.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		return tx
	}
	// Each writes what the other has read, in replayable statements.
	one, two := begin(), begin()
	r.Must(one, "UPDATE account SET balance = (SELECT SUM(balance) FROM account) WHERE id = 1")
	r.Must(two, "UPDATE account SET balance = (SELECT SUM(balance) FROM account) WHERE id = 2")
	if err := one.Commit(); err != nil {
		t.Fatal(err)
	}
	err := two.Commit()
	wantAnswered(r, err)
	if pg, ok := err.(*pgconn.PgError); !ok || pg.Code != "40001" {
		t.Errorf("the error is %v (%T), want the driver's own serialization failure", err, err)
	}
	r.WantBalances(3, 2)
}

// The caller reads the error of a row after Query has returned, so that the wrapper cannot see it
// and commits the transaction like any other.
func TestPostgresSilentRollbackIsTheCallers(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t))
	r.Wrapped.SetMaxOpenConns(1)
	r.Account(1)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	rows, err := tx.Query("SELECT 1 / (3 - n) FROM generate_series(1, 5) n")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
	}
	if rows.Err() == nil {
		t.Fatal("the query did not fail")
	}
	err = tx.Commit()
	wantAnswered(r, err)
	if err != pgx.ErrTxCommitRollback {
		t.Errorf("the error is %v, want the driver's own", err)
	}
	r.WantBalances(1)
	r.Must(r.Wrapped, rig.SetBalance, 11, 1)
	r.WantBalances(11)
}

func TestABusyCommitLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	for form, commit := range map[string]func(*rig.Rig) error{
		"Commit": func(r *rig.Rig) error {
			tx := r.Begin()
			r.Must(tx, rig.SetBalance, 10, 1)
			return tx.Commit()
		},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			db := testdb.SQLite(t)
			db.DSN = "file:" + db.Name // a rollback journal, in which readers block COMMIT
			r := rig.New(t, db)
			r.Wrapped.SetMaxOpenConns(1)
			r.Account(1)
			reader, err := r.Bare.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = reader.Rollback() }()
			var n int
			if err := reader.QueryRow("SELECT COUNT(*) FROM account").Scan(&n); err != nil {
				t.Fatal(err)
			}
			err = commit(r)
			var busy *sqlitedriver.Error
			if !errors.As(err, &busy) || busy.Code()&0xff != 5 {
				t.Fatalf("the error is %v, want the driver's own: busy", err)
			}
			if err := reader.Rollback(); err != nil {
				t.Fatal(err)
			}
			wantAnswered(r, err)
			r.WantBalances(1)
			r.Must(r.Wrapped, rig.SetBalance, 11, 1)
			r.WantBalances(11)
		})
	}
}
