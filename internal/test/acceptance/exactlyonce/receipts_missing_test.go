package exactlyonce

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// reader returns the DSN of an account with rights on the table account alone.
func reader(r *rig.Rig, rights string) (dsn string) {
	limited, _ := r.WithoutCreate()
	name := rig.LimitedAccount(limited)
	if r.DB.Driver == testdb.DriverMySQL {
		r.Exec("REVOKE ALL ON "+limited.Name+".* FROM "+name, "GRANT "+rights+" ON "+limited.Name+".account TO "+name)
	} else {
		r.Exec("REVOKE ALL ON account FROM "+name, "GRANT "+rights+" ON account TO "+name)
	}
	return limited.DSN
}

func TestReadOnlyTransactionNeedsNoReceiptTable(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(100)
		pool := r.Open(reader(r, "SELECT, UPDATE"))
		start := func() *sql.Tx {
			t.Helper()
			tx, err := pool.Begin()
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil || n != 100 {
				t.Errorf("read %d, %v", n, err)
			}
			return tx
		}
		if err := start().Commit(); err != nil {
			t.Errorf("COMMIT of what only read: %v", err)
		}
		tx := start()
		var table *dialect.ReceiptTableError
		if err := r.Fails(tx, rig.AddOne); !errors.As(err, &table) && !strings.Contains(err.Error(), "GRANT") {
			t.Errorf("a write: %v, want one that says what to run", err)
		}
		var n int // nothing was sent that would have aborted it
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil || n != 100 {
			t.Errorf("read %d, %v", n, err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("COMMIT without the write: %v", err)
		}
		r.WantBalances(100)
		r.WantNoLog()
	})
}

// receiptRights grants or revokes rights of the account of reader on the table of receipts.
func receiptRights(r *rig.Rig, change, rights string) {
	name := rig.LimitedAccount(r.DB)
	on := "bed_receipt"
	if r.DB.Driver == testdb.DriverMySQL {
		on = r.DB.Name + "." + on
	}
	r.Exec(change + " " + rights + " ON " + on + map[string]string{"GRANT": " TO ", "REVOKE": " FROM "}[change] + name)
}

func TestMissingReceiptRightsRefuseTheWriteWithGrant(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.ReceiptTable()
		r.Account(100)
		pool := r.Open(reader(r, "SELECT, UPDATE"))
		receiptRights(r, "GRANT", "SELECT")
		for name, write := range map[string]func() error{
			"a write": func() error { return r.Fails(pool, rig.AddOne) },
			"a local transaction": func() error {
				tx, err := pool.Begin()
				if err != nil {
					t.Fatal(err)
				}
				r.Must(tx, rig.AddOne)
				return tx.Commit()
			},
			"a write under a key": func() error {
				ctx, _ := rig.Keyed("k")
				_, err := pool.ExecContext(ctx, rig.AddOne)
				return err
			},
		} {
			err := write()
			var rights *dialect.ReceiptRightsError
			if !errors.As(err, &rights) || errors.Is(err, bedsql.ErrPending) || !strings.HasPrefix(rights.Grant, "GRANT ") {
				t.Errorf("%s: %v, want a refusal with the GRANT to run", name, err)
			}
		}
		r.WantBalances(100)
		r.WantNoLog()
	})
}

func TestUnreadableReceiptLeavesWritePendingAndNamesGrant(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, func(c *bedsql.Config) { c.RetryTimeout = time.Hour })
		r.ReceiptTable()
		r.Account(100)
		all := r.DB.DSN
		r.DB.DSN = reader(r, "SELECT, UPDATE")
		pool := r.OpenStepwise()
		r.DB.DSN = all
		receiptRights(r, "GRANT", "SELECT, INSERT, UPDATE, DELETE")
		r.Must(pool, rig.AddOne)
		receiptRights(r, "REVOKE", "SELECT")
		p.CutAfter(testproxy.Commit)
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		_, err := pool.ExecContext(ctx, rig.AddOne)
		var rights *dialect.ReceiptRightsError
		if rig.WantPending(t, err); !errors.As(err, &rights) || ctx.Err() != nil {
			t.Errorf("%v, want the GRANT to run", err)
		}
		r.WantBalances(102)
		receiptRights(r, "GRANT", "SELECT")
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(102)
	})
}
