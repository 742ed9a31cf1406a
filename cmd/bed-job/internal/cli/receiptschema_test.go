package cli

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestDoctorAndMigrateUseTheReceiptSchema(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverSQLite {
			t.Skip("it has no schemas")
		}
		schema := "own_" + db.Name
		in := install(t, db, map[string]testdb.DB{"orders": db})
		in.sources["orders"] = with(db, attempt.SchemaParam+"="+schema)
		t.Cleanup(func() {
			in.exec(db, "DROP SCHEMA "+schema+map[string]string{testdb.DriverPostgres: " CASCADE"}[db.Driver])
		})
		text, err := attempt.TargetSchema(db.Driver)
		if err != nil {
			t.Fatal(err)
		}
		in.exec(db, "CREATE SCHEMA "+schema, strings.ReplaceAll(text, "EXISTS bed_", "EXISTS "+schema+".bed_"),
			"ALTER TABLE "+schema+".bed_receipt DROP COLUMN log_gone", "ALTER TABLE "+schema+".bed_order DROP COLUMN keep_until")
		found := func(check, what string) bool {
			_, report, _ := in.doctor(app{})
			for _, f := range report.Findings {
				if f.Check == check && strings.Contains(f.What, what) {
					return true
				}
			}
			return false
		}
		for _, table := range []string{"bed_receipt", "bed_order"} {
			if !found("column", table) || !found("column", schema) {
				t.Errorf("the doctor does not see that a column of %s is missing there", table)
			}
		}
		file := filepath.Join(t.TempDir(), "bed-job.yaml")
		write(t, file, fmt.Sprintf("targetDataSource: {orders: {driver: %s, dsn: %q}}\ntransactionLogDataSource: {driver: %[1]s, dsn: %[3]q}\n", db.Driver, in.sources["orders"].DSN, db.DSN))
		migrate := func() run {
			var out, errs bytes.Buffer
			a := app{Getenv: env(nil), In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now}
			return run{a.run(t.Context(), []string{"migrate", "-c", file}), out.String(), errs.String()}
		}
		if done := migrate(); done.status != 0 || !strings.Contains(done.out, "ADD COLUMN log_gone") || !strings.Contains(done.out, "ADD COLUMN keep_until") || !strings.Contains(done.out, schema) {
			t.Errorf("migrate: %+v", done)
		}
		if again := migrate(); again.status != 0 || again.out != "" {
			t.Errorf("a second time it does %+v", again)
		}
		for _, check := range []string{"column", "receipts", "rights", "receipt-schema"} {
			if found(check, "") {
				t.Errorf("the doctor finds %s", check)
			}
		}
		in.exec(db, "INSERT INTO bed_log (name, value) VALUES ('"+tables.ReceiptSchema("orders")+"', 'other')")
		if !found("receipt-schema", "other") {
			t.Error("the doctor does not say that the log remembers another schema")
		}
	})
}
