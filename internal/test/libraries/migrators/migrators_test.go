package migrators

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// migrations are the files for a database.
func migrations(t *testing.T, driver string) (log, receipts fs.FS) {
	t.Helper()
	log, err := txlog.Migrations(driver)
	if err != nil {
		t.Fatal(err)
	}
	if receipts, err = bedsql.ReceiptMigrations(driver); err != nil {
		t.Fatal(err)
	}
	return log, receipts
}

// up migrates a database, each of its two sets of files by versions of its own.
func up(t *testing.T, run tool, db testdb.DB, step int) {
	t.Helper()
	log, receipts := migrations(t, db.Driver)
	if err := run(t.Context(), db, log, "bed_log_version", step); err != nil {
		t.Fatalf("the log's tables, step %d: %v", step, err)
	}
	if err := run(t.Context(), db, receipts, "bed_receipt_version", step); err != nil {
		t.Fatalf("a target's tables, step %d: %v", step, err)
	}
}

// eachTool runs test with each tool, over each database.
func eachTool(t *testing.T, test func(t *testing.T, db testdb.DB, run tool)) {
	t.Parallel()
	for name := range tools(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) { test(t, db, tools(t)[name]) })
		})
	}
}

func TestToolsMakeTheTablesThatOpenMakes(t *testing.T) {
	eachTool(t, func(t *testing.T, db testdb.DB, run tool) {
		log, target := testdb.New(t, db.Driver), testdb.New(t, db.Driver)
		made(t, log, target)
		want := append(definitions(t, log), definitions(t, target)...)
		slices.Sort(want)

		up(t, run, db, 1)
		first := definitions(t, db)
		for table, there := range map[string]bool{"transaction_log": true, "bed_audit": true, "bed_receipt": true, "bed_order": false, "bed_order_key": false, "bed_order_queue": false} {
			if slices.ContainsFunc(first, func(line string) bool { return strings.HasPrefix(line, table+" ") }) != there {
				t.Errorf("after step 1 the table %s is there: %v", table, !there)
			}
		}
		up(t, run, db, tables.NewestStep)
		same(t, definitions(t, db), want)
		up(t, run, db, tables.NewestStep)
		same(t, definitions(t, db), want)
	})
}

// The tables of a log in use stay as they are, with their entries.
func TestToolsTakeOverTablesThatOpenMade(t *testing.T) {
	eachTool(t, func(t *testing.T, db testdb.DB, run tool) {
		target := testdb.New(t, db.Driver)
		made(t, db, target)
		before := definitions(t, db)
		log, _ := migrations(t, db.Driver)
		if err := run(t.Context(), db, log, "bed_log_version", tables.NewestStep); err != nil {
			t.Fatal(err)
		}
		same(t, definitions(t, db), before)
		var identities int
		if err := db.Open(t).QueryRow("SELECT COUNT(*) FROM bed_log WHERE name = 'identity'").Scan(&identities); err != nil || identities != 1 {
			t.Errorf("the log has %d identities, %v", identities, err)
		}
	})
}

// A write is logged and delivered although nothing may be created.
func TestMigratedTablesServeWrites(t *testing.T) {
	eachTool(t, func(t *testing.T, log testdb.DB, run tool) {
		target := testdb.New(t, log.Driver)
		up(t, run, log, tables.NewestStep)
		up(t, run, target, tables.NewestStep)
		before := definitions(t, target)
		storage, err := txlog.Open(t.Context(), log.Driver, log.DSN, txlog.WithoutCreate())
		if err != nil {
			t.Fatal(err)
		}
		defer storage.Close()
		write(t, storage, target)
		same(t, definitions(t, target), before)
	})
}

func TestThereAreNoMigrationsForAnUnknownDatabase(t *testing.T) {
	t.Parallel()
	_, log := txlog.Migrations("oracle")
	_, receipts := bedsql.ReceiptMigrations("oracle")
	if log == nil || receipts == nil {
		t.Errorf("the log: %v, a target: %v", log, receipts)
	}
}

// made has bed make its tables: those of a log by Open, those of a target by a write.
func made(t *testing.T, log, target testdb.DB) {
	t.Helper()
	storage, err := txlog.Open(t.Context(), log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer storage.Close()
	write(t, storage, target)
}

// write writes exactly once and under an order key, into a table of the application's.
func write(t *testing.T, storage txlog.Storage, target testdb.DB) {
	t.Helper()
	for _, statement := range []string{"CREATE TABLE account (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO account VALUES (1, 1)"} {
		if _, err := target.Open(t).Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	read := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(target.Driver)
	to, err := read(target.DSN)
	if err != nil {
		t.Fatal(err)
	}
	to.DataSource = "orders"
	connect := testdb.By[func(delivery.Target, bedsql.Config) (driver.Connector, error)]{MySQL: mysql.NewConnector, Postgres: postgres.NewConnector, SQLite: sqlite.NewConnector}.For(target.Driver)
	connector, err := connect(to, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce})
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	if _, err := db.ExecContext(bedsql.WithOrderKey(context.Background(), "a"), "UPDATE account SET n = n + 1 WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := target.Open(t).QueryRow("SELECT n FROM account").Scan(&n); err != nil || n != 2 {
		t.Errorf("the account holds %d, %v, want 2", n, err)
	}
	if _, err := target.Open(t).Exec("DROP TABLE account"); err != nil {
		t.Fatal(err)
	}
}

// definitions describes each of bed's tables in full, as the database does: a line each for MySQL's
// tables, and otherwise for columns, indexes and constraints.
func definitions(t *testing.T, db testdb.DB) (all []string) {
	t.Helper()
	pool := db.Open(t)
	names := texts(t, pool, testdb.By[string]{
		MySQL:    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
		Postgres: "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace",
		SQLite:   "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
	}.For(db.Driver))
	queries := testdb.By[[]string]{
		MySQL: []string{"SHOW CREATE TABLE %s"},
		Postgres: []string{
			`SELECT a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), c.collname, a.attidentity, a.attgenerated
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum LEFT JOIN pg_collation c ON c.oid = a.attcollation
  WHERE a.attrelid = '%s'::regclass AND a.attnum > 0`,
			`SELECT replace(pg_get_indexdef(indexrelid), current_schema() || '.', ''), indisunique, indisprimary FROM pg_index WHERE indrelid = '%s'::regclass`,
			`SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '%s'::regclass`,
			`SELECT relpersistence, reloptions FROM pg_class WHERE oid = '%s'::regclass`,
		},
		SQLite: []string{
			`SELECT * FROM pragma_table_xinfo('%s')`,
			`SELECT l.name, l."unique", l.origin, l.partial, i.seqno, i.name, i."desc", i.coll, i.key, (SELECT sql FROM sqlite_master m WHERE m.name = l.name)
  FROM pragma_index_list('%s') l JOIN pragma_index_xinfo(l.name) i`,
			`SELECT type, ncol, wr, strict FROM pragma_table_list('%s')`,
		},
	}.For(db.Driver)
	for _, name := range names {
		if name != "transaction_log" && !strings.HasPrefix(name, "bed_") || strings.HasSuffix(name, "_version") {
			continue // the tool's
		}
		for _, query := range queries {
			for _, line := range texts(t, pool, fmt.Sprintf(query, name)) {
				all = append(all, name+" "+line)
			}
		}
	}
	slices.Sort(all)
	return all
}

// texts runs a query and returns its rows, a line each.
func texts(t *testing.T, pool *sql.DB, query string) (lines []string) {
	t.Helper()
	rows, err := tables.Texts(t.Context(), pool, query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	for _, cells := range rows {
		lines = append(lines, strings.Join(cells, " | "))
	}
	return lines
}

// same compares two descriptions.
func same(t *testing.T, got, want []string) {
	t.Helper()
	if len(want) == 0 || slices.Equal(got, want) {
		if len(want) == 0 {
			t.Error("no table is there")
		}
		return
	}
	count := map[string]int{}
	for _, line := range got {
		count[line]++
	}
	for _, line := range want {
		count[line]--
	}
	for _, line := range slices.Sorted(maps.Keys(count)) {
		if n := count[line]; n > 0 {
			t.Errorf("only the tool makes %s", line)
		} else if n < 0 {
			t.Errorf("the tool does not make %s", line)
		}
	}
}
