package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// reader returns the DSN of an account with rights on the table account alone.
func (r *rig) reader(rights string) (dsn string) {
	limited, _ := r.withoutCreate()
	name := "lim_" + limited.Name[max(0, len(limited.Name)-24):]
	if r.db.Driver == testdb.DriverMySQL {
		r.exec("REVOKE ALL ON "+limited.Name+".* FROM "+name, "GRANT "+rights+" ON "+limited.Name+".account TO "+name)
	} else {
		r.exec("REVOKE ALL ON account FROM "+name, "GRANT "+rights+" ON account TO "+name)
	}
	return limited.DSN
}

func TestReadOnlyTransactionNeedsNoReceiptTable(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.account(100)
		pool := r.open(r.reader("SELECT, UPDATE"))
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
		if err := r.fails(tx, addOne); !errors.As(err, &table) && !strings.Contains(err.Error(), "GRANT") {
			t.Errorf("a write: %v, want one that says what to run", err)
		}
		var n int // nothing was sent that would have aborted it
		if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil || n != 100 {
			t.Errorf("read %d, %v", n, err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("COMMIT without the write: %v", err)
		}
		r.wantBalances(100)
		r.wantNoLog()
	})
}

// receiptRights grants or revokes rights of the account of reader on the table of receipts.
func (r *rig) receiptRights(change, rights string) {
	name := "lim_" + r.db.Name[max(0, len(r.db.Name)-24):]
	on := "bed_receipt"
	if r.db.Driver == testdb.DriverMySQL {
		on = r.db.Name + "." + on
	}
	r.exec(change + " " + rights + " ON " + on + map[string]string{"GRANT": " TO ", "REVOKE": " FROM "}[change] + name)
}

func TestMissingReceiptRightsRefuseTheWriteWithGrant(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, exactlyOnce)
		r.receiptTable()
		r.account(100)
		pool := r.open(r.reader("SELECT, UPDATE"))
		r.receiptRights("GRANT", "SELECT")
		for name, write := range map[string]func() error{
			"a write": func() error { return r.fails(pool, addOne) },
			"a local transaction": func() error {
				tx, err := pool.Begin()
				if err != nil {
					t.Fatal(err)
				}
				r.must(tx, addOne)
				return tx.Commit()
			},
			"a write under a key": func() error {
				ctx, _ := keyed("k")
				_, err := pool.ExecContext(ctx, addOne)
				return err
			},
		} {
			err := write()
			var rights *dialect.ReceiptRightsError
			if !errors.As(err, &rights) || errors.Is(err, bedsql.ErrPending) || !strings.HasPrefix(rights.Grant, "GRANT ") {
				t.Errorf("%s: %v, want a refusal with the GRANT to run", name, err)
			}
		}
		r.wantBalances(100)
		r.wantNoLog()
	})
}

func TestUnreadableReceiptLeavesWritePendingAndNamesGrant(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce, func(c *bedsql.Config) { c.RetryTimeout = time.Hour })
		r.receiptTable()
		r.account(100)
		all := r.db.DSN
		r.db.DSN = r.reader("SELECT, UPDATE")
		pool := r.openStepwise()
		r.db.DSN = all
		r.receiptRights("GRANT", "SELECT, INSERT, UPDATE, DELETE")
		r.must(pool, addOne)
		r.receiptRights("REVOKE", "SELECT")
		p.CutAfter(testproxy.Text("COMMIT"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := pool.ExecContext(ctx, addOne)
		var rights *dialect.ReceiptRightsError
		if wantPending(t, err); !errors.As(err, &rights) || ctx.Err() != nil {
			t.Errorf("%v, want the GRANT to run", err)
		}
		r.wantBalances(102)
		r.receiptRights("GRANT", "SELECT")
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(102)
	})
}
