package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// The drill: a column is gone, the target refuses 10,000 writes, and an operator clears them
// from the alarm to the all-clear in six commands.
func TestSixCommandsClearTenThousandRefusedWrites(t *testing.T) {
	t.Parallel()
	const writes = 10_000
	log, orders := testdb.MySQL(t), testdb.MySQL(t)
	in := install(t, log, nil)
	in.exec(orders, "CREATE TABLE orders (id INT PRIMARY KEY)") // and no column paid
	st, err := txlog.Open(t.Context(), log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	target, err := dataSource{name: "orders", driver: "mysql", dsn: orders.DSN}.target()
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < writes; {
		units := make([]*entry.Unit, 500)
		for i := range units {
			units[i] = &entry.Unit{ID: entry.NewID(), DataSource: "orders", Settings: target.Settings, Statements: []entry.Statement{
				{SQL: fmt.Sprintf("INSERT INTO orders (id, paid) VALUES (%d, 1) ON DUPLICATE KEY UPDATE paid = 1", n)}}}
			n++
		}
		if err := st.Add(t.Context(), time.Hour, units...); err != nil {
			t.Fatal(err)
		}
	}
	// Their writers have handed them over.
	in.exec(log, "UPDATE transaction_log SET next_try_time = 0, in_doubt = 0, lease_token = NULL, lease_until = NULL")
	file := filepath.Join(t.TempDir(), "bed-job.yaml")
	write(t, file, fmt.Sprintf(`targetDataSource: {orders: {driver: mysql, dsn: %q}}
transactionLogDataSource: {driver: mysql, dsn: %q}
jobConfig: {maxDeliveryTryDelayMillis: 0, transactionLogFetchDataCount: 1000, concurrency: 8, probeTimeoutMillis: 60000}
`, orders.DSN, log.DSN))
	bedJob := func(line string) run {
		var out, errs bytes.Buffer
		a := app{Getenv: env(nil), In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now, Open: openLog}
		return run{a.run(t.Context(), append(strings.Fields(line), "-c", file, "--log-timeout", "1m")), out.String(), errs.String()}
	}
	bedJob("run --once --log-level error") // the job that runs all the time
	commands := 0
	command := func(line string) run {
		commands++
		return bedJob(line)
	}

	alarm := command("check --parked-critical 100")
	if alarm.status != 2 || !strings.Contains(alarm.out, "10000 parked") {
		t.Fatalf("the alarm is %+v", alarm)
	}
	seen := command("list --parked --limit 1 -o json")
	var entries []struct{ ID, LastError string }
	if err := json.Unmarshal([]byte(seen.out), &entries); err != nil || len(entries) != 1 || !strings.Contains(entries[0].LastError, "Unknown column 'paid'") {
		t.Fatalf("the operator sees %+v, %v", seen, err)
	}
	in.exec(orders, "ALTER TABLE orders ADD COLUMN paid INT") // the cause is fixed
	if r := command("try " + entries[0].ID); r.status != 0 || r.out == "" {
		t.Fatalf("the trial says %+v", r)
	}
	if r := command("retry --parked --reason column_added"); r.status != 0 || r.out != "10000 entries of 10000 due now\n" {
		t.Fatalf("the retry says %+v", r)
	}
	if r := command("run --once --log-level error"); r.status != 0 || !strings.Contains(r.out, "10000") {
		t.Fatalf("the job says %+v", r)
	}
	if r := command("check --parked-critical 100 --oldest-critical 1h"); r.status != 0 || !strings.Contains(r.out, "0 parked | parked=0;;100 waiting=0 leased=0") {
		t.Fatalf("the all-clear is %+v", r)
	}
	if commands > 6 {
		t.Errorf("it took %d commands", commands)
	}
	var paid int
	if err := orders.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders WHERE paid = 1").Scan(&paid); err != nil || paid != writes {
		t.Errorf("%d of the writes are there, %v", paid, err)
	}
}
