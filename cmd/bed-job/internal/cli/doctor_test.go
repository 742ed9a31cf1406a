package cli

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/cmd/bed-job/internal/doctor"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// installed is a correct installation, until a test breaks it.
type installed struct {
	t   *testing.T
	log testdb.DB
	// sources are the data sources by name, with their drivers and DSNs in the file.
	sources map[string]testdb.DB
	// logDSN is the log's address in the file, if it differs from the real one.
	logDSN string
	// job is the text of jobConfig.
	job string
}

// install makes the log's tables and a table in each target.
func install(t *testing.T, log testdb.DB, sources map[string]testdb.DB) *installed {
	t.Helper()
	st, err := txlog.Open(t.Context(), log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	in := &installed{t: t, log: log, sources: sources}
	for _, db := range sources {
		in.exec(db, "CREATE TABLE account (id INT PRIMARY KEY, balance INT)")
	}
	return in
}

// exec runs statements, or scripts of several.
func (in *installed) exec(db testdb.DB, scripts ...string) {
	in.t.Helper()
	pool, err := sql.Open(db.SQLDriver(), db.DSN)
	if err != nil {
		in.t.Fatal(err)
	}
	defer pool.Close()
	for s := range strings.SplitSeq(strings.Join(scripts, ";\n"), ";\n") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if _, err := pool.ExecContext(context.Background(), s); err != nil {
			in.t.Fatalf("%s: %v", s, err)
		}
	}
}

// doctor runs the command and returns its exit status and report.
func (in *installed) doctor(a app) (int, doctor.Report, string) {
	in.t.Helper()
	var b strings.Builder
	b.WriteString("targetDataSource:\n")
	for name, db := range in.sources {
		fmt.Fprintf(&b, "  %s: {driver: %s, dsn: %q}\n", name, db.Driver, db.DSN)
	}
	dsn := in.log.DSN
	if in.logDSN != "" {
		dsn = in.logDSN
	}
	fmt.Fprintf(&b, "transactionLogDataSource: {driver: %s, dsn: %q}\n", in.log.Driver, dsn)
	if in.job != "" {
		fmt.Fprintf(&b, "jobConfig: {%s}\n", in.job)
	}
	file := filepath.Join(in.t.TempDir(), "bed-job.yaml")
	write(in.t, file, b.String())
	var out, errs bytes.Buffer
	a.Getenv, a.In, a.Out, a.Err = env(nil), strings.NewReader(""), &out, &errs
	if a.Now == nil {
		a.Now = time.Now
	}
	status := a.run(in.t.Context(), []string{"doctor", "-o", "json", "-c", file})
	var report doctor.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil && out.Len() > 0 {
		in.t.Fatalf("the report cannot be read: %v\n%s", err, out.String())
	}
	return status, report, out.String() + errs.String()
}

// right wants nothing found.
func (in *installed) right() {
	in.t.Helper()
	if status, _, text := in.doctor(app{}); status != 0 {
		in.t.Errorf("a right installation ends with status %d:\n%s", status, text)
	}
}

// wrong expects exactly one finding, by its check, and a word in its remedy.
func (in *installed) wrong(check, remedy string) {
	in.t.Helper()
	in.wrongFor(app{}, check, remedy)
}

func (in *installed) wrongFor(a app, check, remedy string) {
	in.t.Helper()
	status, report, text := in.doctor(a)
	if status != 1 || len(report.Findings) != 1 || report.Findings[0].Check != check || !strings.Contains(report.Findings[0].Remedy, remedy) {
		in.t.Errorf("status %d, want 1 and %s with %q alone:\n%s", status, check, remedy, text)
	}
	for _, f := range report.Findings {
		if f.Where == "" || f.What == "" || len(f.Remedy) < 10 {
			in.t.Errorf("the finding is not whole: %+v", f)
		}
	}
}

// with adds parameters to a database's DSN.
func with(db testdb.DB, params string) testdb.DB {
	sep := "?"
	if strings.Contains(db.DSN, "?") {
		sep = "&"
	}
	db.DSN += sep + params
	return db
}

// wrongSetUp is one, made on a right installation.
type wrongSetUp struct {
	name          string
	check, remedy string
	// before and after are statements for the server; after undoes.
	before, after []string
	// log and target are statements in these databases.
	log, target []string
	// make does what statements cannot.
	make func(*testing.T, *installed)
	app  app
}

func (c wrongSetUp) run(t *testing.T, admin testdb.DB, create func() testdb.DB) {
	t.Helper()
	t.Run(c.name, func(t *testing.T) {
		in := install(t, create(), map[string]testdb.DB{"orders": create()})
		in.exec(admin, c.before...)
		defer in.exec(admin, c.after...)
		in.exec(in.log, c.log...)
		in.exec(in.sources["orders"], c.target...)
		if c.make != nil {
			c.make(t, in)
		}
		in.wrongFor(c.app, c.check, c.remedy)
	})
}

// oldEntry puts an entry into a log as another application wrote it.
func oldEntry(t *testing.T, in *installed, change func(*entry.Unit)) {
	t.Helper()
	st, err := txlog.Open(t.Context(), in.log.Driver, in.log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "DELETE FROM account"}}}
	target, err := dataSource{name: "orders", driver: in.log.Driver, dsn: in.sources["orders"].DSN}.target()
	if err != nil {
		t.Fatal(err)
	}
	u.Settings = target.Settings
	change(u)
	if err := st.Add(t.Context(), time.Hour, u); err != nil {
		t.Fatal(err)
	}
}

// withoutOrder gives a target only the table of receipts, and an account that cannot create tables.
func withoutOrder(t *testing.T, in *installed, admin testdb.DB) {
	t.Helper()
	receiptTableIn(t, in, in.sources["orders"])
	in.exec(in.sources["orders"], "DROP TABLE bed_order")
	in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON *")
}

// anywhere are wrong set-ups of every kind of database.
func anywhere() []wrongSetUp {
	return []wrongSetUp{
		{name: "no table of entries", check: "table", remedy: "bed-job schema", log: []string{"DROP TABLE transaction_log"}},
		{name: "no identity", check: "table", remedy: "bed-job schema", log: []string{"DROP TABLE bed_log"}},
		{name: "a table of an older version", check: "column", remedy: "bed-job migrate", log: []string{"ALTER TABLE transaction_log DROP COLUMN in_doubt"}},
		{name: "a table of receipts of an older version", check: "column", remedy: "bed-job migrate", make: func(t *testing.T, in *installed) {
			text, err := schema(in.log.Driver, false, true, whole)
			if err != nil {
				t.Fatal(err)
			}
			in.exec(in.sources["orders"], text, "ALTER TABLE bed_receipt DROP COLUMN log_gone")
		}},
		{name: "a table of order keys that lacks a column", check: "column", remedy: "bed-job migrate", make: func(t *testing.T, in *installed) {
			receiptTableIn(t, in, in.sources["orders"])
			in.exec(in.sources["orders"], "ALTER TABLE bed_order DROP COLUMN keep_until")
		}},
		{name: "a retention shorter than the lease", check: "retention", remedy: "receiptRetentionMillis", make: func(_ *testing.T, in *installed) {
			in.job = "receiptRetentionMillis: 1000"
		}},
		{name: "keys kept for less than the lease", check: "retention", remedy: "keyRetentionMillis", make: func(_ *testing.T, in *installed) {
			in.job = "keyRetentionMillis: 1000"
		}},
		{name: "a configuration with which the job does not start", check: "file", remedy: "fix the line", make: func(_ *testing.T, in *installed) {
			in.job = "concurrency: none"
		}},
		{name: "a data source that nobody configured", check: "unknown-data-source", remedy: "targetDataSource", make: func(t *testing.T, in *installed) {
			oldEntry(t, in, func(u *entry.Unit) { u.DataSource = "orders_0" })
		}},
		{name: "an order key whose first entry was deleted", check: "order-key", remedy: "discard", make: func(t *testing.T, in *installed) {
			in.exec(in.log, "INSERT INTO bed_order_key (id, last, head, waiting) VALUES ('order-k', 1, 'gone', 0)")
		}},
		{name: "receipts that are gone", check: "receipts", remedy: "--verify", make: func(t *testing.T, in *installed) {
			oldEntry(t, in, func(u *entry.Unit) { u.Receipt = u.ID })
		}},
	}
}

// memory is a target on this process's clock, for comparison with the log's.
func memory(in *installed) testdb.DB {
	path := filepath.Join(in.t.TempDir(), "target.db")
	db := testdb.DB{Driver: "sqlite", DSN: "file:" + path + "?_pragma=busy_timeout(5000)", Name: path}
	in.exec(db, "CREATE TABLE account (id INT)")
	return db
}

func TestDoctorFindsWhatIsWrongWithMariaDB(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateMariaDB(t, "--log-bin=binlog", "--sync-binlog=1", "--server-id=1")
	admin := server.DB(t)
	create := func() testdb.DB { return server.DB(t) }
	install(t, create(), map[string]testdb.DB{"orders": create(), "ledger": create()}).right()
	t.Run("without order keys their table is not needed", func(t *testing.T) {
		in := install(t, create(), map[string]testdb.DB{"orders": create()})
		withoutOrder(t, in, admin)
		in.right()
	})
	t.Run("an account with enough connections is right", func(t *testing.T) {
		in := install(t, create(), map[string]testdb.DB{"orders": create()})
		in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE, CREATE ON *")
		user, _, _ := strings.Cut(in.sources["orders"].DSN, "@")
		in.exec(admin, "GRANT USAGE ON *.* TO "+user+"@'%' WITH MAX_USER_CONNECTIONS 100")
		in.right()
	})
	account := func(grants ...string) func(*testing.T, *installed) {
		return func(_ *testing.T, in *installed) { in.limited(admin, grants...) }
	}
	cases := []wrongSetUp{
		{name: "commits that are not flushed", check: "innodb_flush_log_at_trx_commit", remedy: "= 1",
			before: []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 2"}, after: []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"}, make: onlyLogThere},
		{name: "prepared statements that are refused", check: "max_prepared_stmt_count", remedy: "max_prepared_stmt_count = 16382",
			before: []string{"SET GLOBAL max_prepared_stmt_count = 0"}, after: []string{"SET GLOBAL max_prepared_stmt_count = 16382"}, make: onlyLogThere},
		{name: "a binary log that is not synced", check: "sync_binlog", remedy: "sync_binlog = 1",
			before: []string{"SET GLOBAL sync_binlog = 0"}, after: []string{"SET GLOBAL sync_binlog = 1"}, make: onlyLogThere},
		{name: "a binary log of statements", check: "binlog_format", remedy: "ROW",
			before: []string{"SET GLOBAL binlog_format = 'STATEMENT'"}, after: []string{"SET GLOBAL binlog_format = 'MIXED'"}, make: onlyLogThere},
		{name: "a server that is read-only", check: "read-only", remedy: "primary",
			before: []string{"SET GLOBAL read_only = 1"}, after: []string{"SET GLOBAL read_only = 0"}, make: onlyLogThere},
		{name: "a session that is read-only", check: "read-only", remedy: "primary", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = with(in.sources["orders"], "tx_read_only=1")
		}},
		{name: "values that are cut", check: "sql_mode", remedy: "STRICT_TRANS_TABLES", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = with(in.sources["orders"], "sql_mode=%27%27")
		}},
		{name: "a mode that differs", check: "sql_mode", remedy: "each DSN", make: func(_ *testing.T, in *installed) {
			in.sources["ledger"] = with(in.another(create()), "sql_mode=%27STRICT_TRANS_TABLES,ANSI_QUOTES%27")
		}},
		{name: "a time zone that differs", check: "time_zone", remedy: "each DSN", make: func(_ *testing.T, in *installed) {
			in.sources["ledger"] = with(in.another(create()), "time_zone=%27%2B05:00%27")
		}},
		{name: "a location that differs", check: "time_zone", remedy: "each DSN", make: func(_ *testing.T, in *installed) {
			in.sources["ledger"] = with(in.another(create()), "loc=Asia%2FShanghai")
		}},
		{name: "a session with a clock of its own", check: "clock", remedy: "timestamp", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = with(in.sources["orders"], "timestamp=1700000000")
		}},
		{name: "a table without transactions", check: "no-transactions", remedy: "InnoDB", target: []string{"CREATE TABLE hits (n INT) ENGINE = MyISAM"}},
		{name: "a log without transactions", check: "engine", remedy: "InnoDB", log: []string{"ALTER TABLE transaction_log ENGINE = Aria"}},
		{name: "a log of few letters", check: "charset", remedy: "ALTER TABLE", log: []string{"ALTER TABLE transaction_log DEFAULT CHARACTER SET latin1"}},
		{name: "no index to claim by", check: "index", remedy: "bed-job schema", log: []string{"DROP INDEX transaction_log_due ON transaction_log"}},
		{name: "a log that may not be written", check: "rights", remedy: "GRANT", make: account("SELECT, INSERT, UPDATE ON transaction_log", "SELECT, INSERT, UPDATE, DELETE ON bed_log")},
		{name: "a target that may not be written", check: "rights", remedy: "GRANT", make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT, CREATE ON *")
		}},
		{name: "receipts that may not be made", check: "receipts", remedy: "bed-job schema", make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON *")
		}},
		{name: "order keys whose table may not be made", check: "order", remedy: "bed-job schema", make: func(t *testing.T, in *installed) {
			withoutOrder(t, in, admin)
			oldEntry(t, in, func(u *entry.Unit) { u.Receipt, u.Order = u.ID, []entry.Order{{Key: entry.OrderPrefix + "k"}} })
		}},
		{name: "order keys that may not be raised", check: "rights", remedy: "bed_order", make: func(t *testing.T, in *installed) {
			receiptTableIn(t, in, in.sources["orders"])
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON account", "SELECT, INSERT, UPDATE, DELETE ON bed_receipt", "SELECT, INSERT ON bed_order")
		}},
		{name: "receipts that may not be erased", check: "rights", remedy: "GRANT", make: func(t *testing.T, in *installed) {
			receiptTableIn(t, in, in.sources["orders"])
			in.exec(in.sources["orders"], "DROP TABLE bed_order")
			in.limitedTarget(admin, "SELECT, INSERT ON *")
		}},
		{name: "more connections than there are", check: "connections", remedy: "concurrency", make: func(_ *testing.T, in *installed) { in.job = "concurrency: 500" }},
		{name: "an account with few connections", check: "connections", remedy: "limit", make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE, CREATE ON *")
			user, _, _ := strings.Cut(in.sources["orders"].DSN, "@")
			in.exec(admin, "GRANT USAGE ON *.* TO "+user+"@'%' WITH MAX_USER_CONNECTIONS 5")
		}},
		{name: "sessions that commit nothing", check: "autocommit", remedy: "autocommit = 1", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = with(in.sources["orders"], "autocommit=0")
		}},
		{name: "a lock wait longer than a delivery", check: "lock-wait", remedy: "deliveryTimeoutMillis", make: func(_ *testing.T, in *installed) {
			in.sources["orders"] = with(in.sources["orders"], "innodb_lock_wait_timeout=1000")
		}},
		{name: "packets that are too small", check: "max_allowed_packet", remedy: "16M",
			before: []string{"SET GLOBAL max_allowed_packet = 1048576"}, after: []string{"SET GLOBAL max_allowed_packet = 16777216"}},
		{name: "a copy of the log", check: "identity", remedy: "DELETE FROM bed_log", make: func(_ *testing.T, in *installed) {
			copied := create()
			in.exec(copied, "CREATE TABLE bed_log AS SELECT * FROM `"+in.log.Name+"`.bed_log")
			in.exec(copied, "CREATE TABLE bed_nothing (id INT)")
			in.t.Cleanup(func() { in.exec(admin, "DROP DATABASE `"+copied.Name+"`") })
			onlyLogThere(nil, in)
		}},
	}
	for _, c := range append(cases, anywhere()...) {
		c.run(t, admin, create)
	}
}

func TestDoctorReportsAnOutdatedServer(t *testing.T) {
	server := testdb.PrivateMariaDB(t, "--version=10.3.1-MariaDB")
	c := wrongSetUp{name: "10.3", check: "version", remedy: "10.6", make: onlyLogThere}
	c.run(t, server.DB(t), func() testdb.DB { return server.DB(t) })
}

// onlyLogThere leaves only the log on the server, so that each problem of the server is found once;
// the target is a file.
func onlyLogThere(_ *testing.T, in *installed) {
	in.sources = map[string]testdb.DB{"file": memory(in)}
}

// another adds a correct target.
func (in *installed) another(db testdb.DB) testdb.DB {
	in.exec(db, "CREATE TABLE account (id INT PRIMARY KEY)")
	return db
}

// limited leads the log's DSN to an account with these rights on its tables.
func (in *installed) limited(admin testdb.DB, grants ...string) {
	in.t.Helper()
	grants = append(grants, "SELECT, INSERT, UPDATE, DELETE ON bed_attempt", "SELECT, INSERT, UPDATE, DELETE ON bed_activity",
		"SELECT, INSERT ON bed_audit", "SELECT, INSERT, UPDATE, DELETE ON bed_data_source",
		"SELECT, INSERT, UPDATE, DELETE ON bed_order_key", "SELECT, INSERT, UPDATE, DELETE ON bed_order_queue")
	in.logDSN = in.as(admin, in.log, grants...).DSN
}

func (in *installed) limitedTarget(admin testdb.DB, grants ...string) {
	in.t.Helper()
	in.sources["orders"] = in.as(admin, in.sources["orders"], grants...)
}

// as returns a database as seen by an account with these rights there.
func (in *installed) as(admin, db testdb.DB, grants ...string) testdb.DB {
	in.t.Helper()
	if db.Driver == "postgres" {
		user := "u_" + strings.ToLower(db.Name)
		in.exec(db, "CREATE USER "+user)
		for _, g := range grants {
			in.exec(db, "GRANT "+strings.ReplaceAll(g, "ON *", "ON ALL TABLES IN SCHEMA public")+" TO "+user)
		}
		db.DSN = strings.Replace(db.DSN, "postgres@", user+"@", 1)
		return db
	}
	user := fmt.Sprintf("u%d", time.Now().UnixNano())
	in.exec(admin, "CREATE USER "+user+"@'%'")
	for _, g := range grants {
		in.exec(admin, "GRANT "+strings.Replace(g, " ON ", " ON `"+db.Name+"`.", 1)+" TO "+user+"@'%'")
	}
	db.DSN = strings.Replace(db.DSN, "root@", user+"@", 1)
	return db
}

func TestDoctorAcceptsADefaultMariaDBWithoutBinaryLog(t *testing.T) {
	server := testdb.PrivateMariaDB(t, "--max-connections=151")
	install(t, server.DB(t), map[string]testdb.DB{"orders": server.DB(t)}).right()
	// sync_binlog is 0 there by default. A log without writes loses nothing by that.
	in := install(t, server.DB(t), map[string]testdb.DB{"orders": server.DB(t)})
	admin := server.DB(t)
	in.limited(admin, "SELECT, INSERT, UPDATE, DELETE ON transaction_log", "SELECT, INSERT, UPDATE, DELETE ON bed_log")
	in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE, CREATE ON *")
	in.right()
}

func TestDoctorFindsWhatIsWrongWithPostgreSQL(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t)
	admin := server.DB(t)
	create := func() testdb.DB { return server.DB(t) }
	install(t, create(), map[string]testdb.DB{"orders": create(), "ledger": create()}).right()
	target := func(params string) func(*testing.T, *installed) {
		return func(_ *testing.T, in *installed) { in.sources["orders"] = with(in.sources["orders"], params) }
	}
	t.Run("without order keys their table is not needed", func(t *testing.T) {
		in := install(t, create(), map[string]testdb.DB{"orders": create()})
		withoutOrder(t, in, admin)
		in.right()
	})
	cases := []wrongSetUp{
		{name: "commits that are not flushed", check: "synchronous_commit", remedy: "ALTER ROLE", make: target("synchronous_commit=off")},
		{name: "a session that only reads", check: "read-only", remedy: "ALTER ROLE", make: target("default_transaction_read_only=on")},
		{name: "statements that are cut off", check: "statement_timeout", remedy: "at least 1s", make: target("statement_timeout=900")},
		{name: "a lock wait longer than a delivery", check: "lock-wait", remedy: "deliveryTimeoutMillis", make: target("lock_timeout=1000000")},
		{name: "a path that leads nowhere", check: "search_path", remedy: "search_path", make: target("search_path=nowhere")},
		{name: "a time zone that differs", check: "timezone", remedy: "each DSN", make: func(_ *testing.T, in *installed) {
			in.sources["ledger"] = with(in.another(create()), "timezone=Asia%2FShanghai")
		}},
		{name: "a table that is emptied by a crash", check: "unlogged", remedy: "SET LOGGED", target: []string{"CREATE UNLOGGED TABLE hits (n INT)"}},
		{name: "a log that is emptied by a crash", check: "unlogged", remedy: "SET LOGGED", log: []string{"ALTER TABLE transaction_log SET UNLOGGED"}},
		{name: "no index to claim by", check: "index", remedy: "bed-job schema", log: []string{"DROP INDEX transaction_log_due"}},
		{name: "a log that may not be written", check: "rights", remedy: "GRANT", make: func(_ *testing.T, in *installed) {
			in.limited(admin, "SELECT, INSERT, UPDATE ON transaction_log", "SELECT, INSERT, UPDATE, DELETE ON bed_log")
		}},
		{name: "a target that may not be written", check: "rights", remedy: "GRANT", target: []string{"GRANT CREATE ON SCHEMA public TO PUBLIC"}, make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT ON *")
		}},
		{name: "receipts that may not be made", check: "receipts", remedy: "bed-job schema", make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON *")
		}},
		{name: "order keys whose table may not be made", check: "order", remedy: "bed-job schema", make: func(t *testing.T, in *installed) {
			withoutOrder(t, in, admin)
			oldEntry(t, in, func(u *entry.Unit) { u.Receipt, u.Order = u.ID, []entry.Order{{Key: entry.OrderPrefix + "k"}} })
		}},
		{name: "order keys that may not be raised", check: "rights", remedy: "bed_order", make: func(t *testing.T, in *installed) {
			receiptTableIn(t, in, in.sources["orders"])
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON account", "SELECT, INSERT, UPDATE, DELETE ON bed_receipt", "SELECT, INSERT ON bed_order")
		}},
		{name: "more connections than there are", check: "connections", remedy: "concurrency", make: func(_ *testing.T, in *installed) { in.job = "concurrency: 500" }},
		{name: "an account with few connections", check: "connections", remedy: "limit", make: func(_ *testing.T, in *installed) {
			in.limitedTarget(admin, "SELECT, INSERT, UPDATE, DELETE ON *")
			user, _, _ := strings.Cut(strings.TrimPrefix(in.sources["orders"].DSN, "postgres://"), "@")
			in.exec(in.sources["orders"], "SELECT 1")
			in.exec(admin, "ALTER ROLE "+user+" CONNECTION LIMIT 5", "GRANT CREATE ON SCHEMA public TO PUBLIC")
			root := in.sources["orders"]
			root.DSN = strings.Replace(root.DSN, user+"@", "postgres@", 1)
			in.exec(root, "GRANT CREATE ON SCHEMA public TO PUBLIC")
		}},
		{name: "a copy of the log", check: "identity", remedy: "DELETE FROM bed_log", log: []string{
			"CREATE SCHEMA copied", "CREATE TABLE copied.bed_log AS SELECT * FROM bed_log"}},
		{name: "a pooler without transactions", check: "pooler", remedy: "pool_mode", make: func(t *testing.T, in *installed) {
			in.sources["orders"] = testdb.PgBouncer(t, in.sources["orders"], "pool_mode=statement")
		}},
		{name: "a pooler that drops settings", check: "pooler", remedy: "ignore_startup_parameters", target: []string{"CREATE SCHEMA app", "CREATE TABLE app.t (id INT)"},
			make: func(t *testing.T, in *installed) {
				in.sources["orders"] = with(testdb.PgBouncer(t, in.sources["orders"], "ignore_startup_parameters=extra_float_digits,search_path"), "search_path=app")
			}},
	}
	for _, c := range append(cases, anywhere()...) {
		c.run(t, admin, create)
	}
	for _, setting := range []string{"fsync", "full_page_writes"} {
		broken := testdb.PrivatePostgres(t, setting+"=off")
		c := wrongSetUp{name: setting + " is off", check: setting, remedy: "postgresql.conf", make: onlyLogThere}
		c.run(t, broken.DB(t), func() testdb.DB { return broken.DB(t) })
	}
	t.Run("a pooler in transaction mode is right", func(t *testing.T) {
		in := install(t, create(), map[string]testdb.DB{"orders": create()})
		in.sources["orders"] = testdb.PgBouncer(t, in.sources["orders"])
		in.right()
	})
}

func TestDoctorListsTargetsAtHomeWithTheLog(t *testing.T) {
	t.Parallel()
	mysql, postgres := testdb.MySQL(t), testdb.Postgres(t)
	for log, want := range map[testdb.DB]string{mysql: "[other]", postgres: "[same]"} {
		in := install(t, log, map[string]testdb.DB{"elsewhere": testdb.SQLite(t)})
		if log.Driver == testdb.DriverMySQL {
			in.sources["other"] = testdb.MySQL(t) // on the same server
		} else {
			in.sources["same"], in.sources["other"] = log, testdb.Postgres(t)
		}
		_, report, text := in.doctor(app{})
		if got := fmt.Sprint(report.AtHome); got != want {
			t.Errorf("%s: at home are %s, want %s; doctor says %s", log.Driver, got, want, text)
		}
	}
}
