package cli

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// An older version's table lacks columns, and its entries are delivered all the same once it
// has them.
func TestMigrateBringsOlderTablesUpToDate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		in := install(t, db, nil)
		st, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "DELETE FROM account"}}}
		if err := st.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		receipts, err := schema(db.Driver, false, true, whole)
		if err != nil {
			t.Fatal(err)
		}
		drop := map[string]string{"mysql": " ON transaction_log"}[db.Driver]
		in.exec(db, receipts, "DROP INDEX transaction_log_due"+drop,
			"ALTER TABLE transaction_log DROP COLUMN in_doubt", "ALTER TABLE transaction_log DROP COLUMN transaction_id",
			"ALTER TABLE transaction_log DROP COLUMN lease_token", "ALTER TABLE transaction_log DROP COLUMN settings",
			"ALTER TABLE bed_receipt DROP COLUMN log_gone", "ALTER TABLE bed_order DROP COLUMN keep_until", "DROP TABLE bed_audit")
		file := filepath.Join(t.TempDir(), "bed-job.yaml")
		write(t, file, fmt.Sprintf("targetDataSource: {orders: {driver: %s, dsn: %q}}\ntransactionLogDataSource: {driver: %[1]s, dsn: %[2]q}\n", db.Driver, db.DSN))
		migrate := func(args ...string) run {
			var out, errs bytes.Buffer
			a := app{Getenv: env(nil), In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now}
			return run{a.run(t.Context(), append([]string{"migrate", "-c", file}, args...)), out.String(), errs.String()}
		}
		dry := migrate("--dry-run")
		for _, want := range []string{"ADD COLUMN in_doubt", "ADD COLUMN transaction_id", "ADD COLUMN settings", "transaction_log_due", "ADD COLUMN log_gone", "bed_order ADD COLUMN keep_until", "bed_audit ("} {
			if dry.status != 0 || !strings.Contains(dry.out, want) {
				t.Errorf("the plan lacks %s: %+v", want, dry)
			}
		}
		if done := migrate(); done.status != 0 || done.out != dry.out {
			t.Errorf("it was done otherwise than planned:\n%+v\nplanned:\n%s", done, dry.out)
		}
		if again := migrate(); again.status != 0 || again.out != "" || again.err != "All tables are up to date.\n" {
			t.Errorf("a second time it does %+v", again)
		}
		if st, err = txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithoutCreate()); err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		got, err := st.Get(t.Context(), u.ID)
		if err != nil || !got.InDoubt || got.TransactionID != u.ID || got.Unreadable != nil || len(got.Statements) != 1 {
			t.Errorf("the entry of the older version is %+v, %v", got, err)
		}
		if err := st.Add(t.Context(), time.Hour, &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: u.Statements}); err != nil {
			t.Errorf("a new entry: %v", err)
		}
	})
}
