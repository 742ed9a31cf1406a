package sqltext

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/testdb"
)

// MariaDB gives the second opinion. Each text runs in its own session, within a transaction that
// has already written, and the states before and after are compared.
func FuzzWhatMariaDBWritesIsNoRead(f *testing.F) {
	m := newMariaDB(f)
	addTexts(f, MySQL)
	for _, text := range []string{
		"WITH x AS (SELECT 1) UPDATE t SET a = 2", "/*!99999 DELETE FROM t */", "/*M!100100 DELETE FROM t */", "SELECT 1; DELETE FROM t", "SELECT NEXTVAL(s)",
		"SELECT 1 --\u00a0; DELETE FROM t", "INSERT INTO t (a) VALUES (9) RETURNING a", "BEGIN NOT ATOMIC DELETE FROM t; END", "SELECT a INTO @x FROM t", "DO GET_LOCK('x', 0)",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if reaches(text) {
			return
		}
		class := Classify(MySQL, text)
		did, err := m.run(t, text)
		if what := did.against(class); what != "" {
			t.Fatalf("%q is read as %s; MariaDB %s; %v", text, describe(class), what, err)
		}
	})
}

const (
	tablesOfMariaDB = `CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, n INT, s TEXT);
CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, n INT, s TEXT);
CREATE TABLE witness (n INT);
CREATE SEQUENCE s;
CREATE VIEW v AS SELECT * FROM t;
`
	rowsOfMariaDB = `DELETE FROM t; INSERT INTO t VALUES (1, 1, 1, 1, 'a'), (2, 2, 2, 2, 'b'), (3, 3, 3, 3, 'c');
DELETE FROM u; INSERT INTO u VALUES (1, 1, 1, 1, 'a'), (2, 2, 2, 2, 'b');
DELETE FROM witness`
	// unhurried has the server not cut a question as it cuts a text.
	unhurried         = `SET STATEMENT max_statement_time = 60 FOR `
	contentsOfMariaDB = unhurried + `SELECT CONCAT_WS(' ', (SELECT GROUP_CONCAT(CONCAT_WS(',', id, a, b, n, s) ORDER BY id, a, b, n, s) FROM t),
(SELECT GROUP_CONCAT(CONCAT_WS(',', id, a, b, n, s) ORDER BY id, a, b, n, s) FROM u)), (SELECT COUNT(*) FROM witness)`
	// This is the question to the session after a text. The omitted variables describe the last
	// statement, or identify the session.
	variablesOfMariaDB = `SELECT GROUP_CONCAT(variable_name, '=', variable_value ORDER BY variable_name SEPARATOR '\n') FROM information_schema.session_variables
WHERE variable_name NOT IN ('ERROR_COUNT', 'WARNING_COUNT', 'TIMESTAMP', 'RAND_SEED1', 'RAND_SEED2', 'PSEUDO_THREAD_ID', 'LAST_INSERT_ID', 'IDENTITY', 'INSERT_ID',
	'IN_TRANSACTION', 'LAST_GTID', 'GTID_SEQ_NO', 'GTID_BINLOG_POS', 'GTID_CURRENT_POS', 'GTID_BINLOG_STATE', 'PROXY_USER', 'EXTERNAL_USER')
AND variable_name NOT IN (SELECT variable_name FROM information_schema.system_variables WHERE variable_scope = 'GLOBAL')`
	definitionsOfMariaDB = `SELECT CONCAT_WS('\n',
(SELECT GROUP_CONCAT(table_name, table_type, COALESCE(engine, ''), COALESCE(create_options, ''), COALESCE(table_collation, ''), table_comment ORDER BY table_name) FROM information_schema.tables WHERE table_schema = DATABASE()),
(SELECT GROUP_CONCAT(table_name, ordinal_position, column_name, column_type, is_nullable, COALESCE(column_default, ''), extra, COALESCE(collation_name, ''), column_comment ORDER BY table_name, ordinal_position) FROM information_schema.columns WHERE table_schema = DATABASE()),
(SELECT GROUP_CONCAT(table_name, index_name, column_name, non_unique ORDER BY table_name, index_name, seq_in_index) FROM information_schema.statistics WHERE table_schema = DATABASE()),
(SELECT GROUP_CONCAT(routine_name ORDER BY routine_name) FROM information_schema.routines WHERE routine_schema = DATABASE()),
(SELECT GROUP_CONCAT(trigger_name ORDER BY trigger_name) FROM information_schema.triggers WHERE trigger_schema = DATABASE()),
(SELECT CONCAT(default_character_set_name, default_collation_name) FROM information_schema.schemata WHERE schema_name = DATABASE()),
(SELECT GROUP_CONCAT(priv) FROM mysql.global_priv WHERE user = DATABASE()))`
)

// mariaDB is a database, and an account of its name without rights elsewhere.
type mariaDB struct {
	admin *sql.DB
	name  string
	pool  *sql.DB // of the account; no connection of it is used twice
	// contents, definitions and variables are the state before a text runs.
	contents, definitions, variables string
}

func newMariaDB(f *testing.F) *mariaDB {
	f.Helper()
	db := testdb.MySQL(f)
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		f.Fatal(err)
	}
	cfg.MultiStatements = true
	cfg.Params = map[string]string{"group_concat_max_len": "10000000", "lock_wait_timeout": "5"}
	m := &mariaDB{name: db.Name, admin: open(f, cfg)}
	m.admin.SetMaxOpenConns(1)
	var version string
	if err := m.admin.QueryRowContext(f.Context(), "SELECT VERSION()").Scan(&version); err != nil {
		f.Fatal(err)
	}
	if !strings.Contains(version, "MariaDB") {
		f.Skip("needs a MariaDB, and its own name:", version)
	}
	cfg = cfg.Clone()
	cfg.User, cfg.Passwd, cfg.ReadTimeout = m.name, m.name, 3*time.Second
	cfg.Params = map[string]string{
		"group_concat_max_len": "10000000", "lock_wait_timeout": "1", "innodb_lock_wait_timeout": "1", "max_statement_time": "0.5", "max_recursive_iterations": "100",
	}
	m.pool = open(f, cfg)
	m.pool.SetMaxIdleConns(0)
	f.Cleanup(func() { m.exec(f, "DROP USER IF EXISTS `"+m.name+"`@'%'") })
	m.restore(f)
	for range tries {
		if err = m.pool.QueryRowContext(f.Context(), variablesOfMariaDB).Scan(&m.variables); err == nil {
			return m
		}
	}
	f.Fatal(err)
	return nil
}

func open(t testing.TB, cfg *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func (m *mariaDB) exec(t testing.TB, text string) {
	t.Helper()
	if _, err := m.admin.ExecContext(context.WithoutCancel(t.Context()), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// restore recreates the account and everything that it may change.
func (m *mariaDB) restore(t testing.TB) {
	t.Helper()
	m.exec(t, strings.NewReplacer("NAME", m.name, "PATTERN", strings.ReplaceAll(m.name, "_", `\_`)).Replace("DROP DATABASE IF EXISTS `NAME`; CREATE DATABASE `NAME` CHARACTER SET utf8mb4; USE `NAME`; "+
		"DROP USER IF EXISTS `NAME`@'%'; CREATE USER `NAME`@'%' IDENTIFIED BY 'NAME'; GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, "+
		"CREATE TEMPORARY TABLES, LOCK TABLES, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, TRIGGER, DELETE HISTORY ON `PATTERN`.* TO `NAME`@'%'; ")+
		tablesOfMariaDB+rowsOfMariaDB)
	m.contents, _, _ = m.rows(t.Context(), m.admin)
	m.definitions = m.defined(t) // the account has the time at which it was made
}

// rows are the content of the tables, and whether it includes the transaction's first write, unless
// the session is lost.
func (m *mariaDB) rows(ctx context.Context, from interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (contents string, witness int, told bool) {
	if err := from.QueryRowContext(ctx, contentsOfMariaDB).Scan(&contents, &witness); err != nil {
		return err.Error(), 0, errors.As(err, new(*mysql.MySQLError))
	}
	return contents, witness, true
}

// defined is the state apart from rows; for a dropped database, the server's error.
func (m *mariaDB) defined(t testing.TB) (definitions string) {
	t.Helper()
	if err := m.admin.QueryRowContext(t.Context(), definitionsOfMariaDB).Scan(&definitions); err != nil {
		return err.Error()
	}
	return definitions
}

// begin opens a session with a transaction that has written.
func (m *mariaDB) begin(t *testing.T) (c *sql.Conn, id int64) {
	t.Helper()
	var err error
	for range tries {
		if c, err = m.pool.Conn(t.Context()); err != nil {
			continue
		}
		if err = c.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err == nil {
			if _, err = c.ExecContext(t.Context(), "START TRANSACTION; INSERT INTO witness VALUES (1)"); err == nil {
				return c, id
			}
			m.end(t, id)
		}
		_ = c.Close()
	}
	t.Fatal(err)
	return nil, 0
}

// run runs a text and leaves all as it was before. The error
// is the text's.
func (m *mariaDB) run(t *testing.T, text string) (did deed, err error) {
	t.Helper()
	ctx := t.Context()
	c, id := m.begin(t)
	defer func() { _ = c.Close() }()
	_, err = c.ExecContext(ctx, text)
	var open, autocommit bool
	var variables, database sql.NullString
	alive := c.QueryRowContext(ctx, unhurried+"SELECT @@in_transaction, @@autocommit, DATABASE()").Scan(&open, &autocommit, &database) == nil
	var contents string
	var witness int
	if alive {
		contents, witness, alive = m.rows(ctx, c)
	}
	if alive {
		did.begun, did.lost = !autocommit, !open || witness == 0
		did.rows = open && database.String == m.name && contents != m.contents
		did.session = database.Valid && database.String != m.name
		if err == nil && strings.Contains(strings.ToUpper(text), "SET") && c.QueryRowContext(ctx, variablesOfMariaDB).Scan(&variables) == nil {
			did.session = did.session || variables.String != m.variables
		}
	}
	_, ended := c.ExecContext(ctx, "ROLLBACK; UNLOCK TABLES")
	if ended != nil {
		m.end(t, id)
	}
	contents, witness, _ = m.rows(ctx, m.admin)
	did.committed = witness > 0
	did.lost = did.lost && !did.committed && contents == m.contents // not, if nobody can tell
	did.rows = did.rows || contents != m.contents
	if ended == nil && !did.committed && !did.lost && contents == m.contents {
		return did, err
	}
	m.end(t, id)
	if did.defined = m.defined(t) != m.definitions; did.defined {
		did.rows = false // they cannot be compared
		m.restore(t)
	} else if did.committed || contents != m.contents {
		m.exec(t, rowsOfMariaDB)
	}
	return did, err
}

// end ends a session with possible locks, and waits until it is gone.
func (m *mariaDB) end(t *testing.T, id int64) {
	t.Helper()
	const unknown = 1094
	var gone *mysql.MySQLError
	if _, err := m.admin.ExecContext(t.Context(), fmt.Sprint("KILL ", id)); err != nil && (!errors.As(err, &gone) || gone.Number != unknown) {
		t.Fatal(err)
	}
	for left := 1; left > 0; {
		if err := m.admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?", id).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
}
