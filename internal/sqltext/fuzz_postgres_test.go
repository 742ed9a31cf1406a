package sqltext

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/test/testdb"
)

// PostgreSQL gives the second opinion: the tags of executed statements, and its counts of rows
// changed by a transaction in tables and catalogs. The writes of its large-object functions are not
// recognized by name (doc.go).
func FuzzWhatPostgreSQLWritesIsNoRead(f *testing.F) {
	p := newPostgreSQL(f)
	addTexts(f, Postgres)
	for _, text := range []string{
		"WITH x AS (DELETE FROM t RETURNING a) SELECT * FROM x", "EXPLAIN (ANALYZE, TIMING off) DELETE FROM t", "SELECT 1; DELETE FROM t", "SELECT nextval('s')",
		"SELECT 'a\\'; DELETE FROM t; --'", "SELECT E'\\'; DELETE FROM t; --'", "SELECT $a$ $$ $a$; DELETE FROM t", "/* /* */ */ DELETE FROM t", "SELECT 1 AS \"\"\"; DELETE FROM t",
		"SELECT U&'\\0061' UESCAPE '!'; DELETE FROM t", "TABLE t; BEGIN", "DO $$ BEGIN DELETE FROM t; END $$", "SELECT pg_notify('a', 'b')", "COPY (DELETE FROM t RETURNING a) TO STDOUT",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		upper := strings.ToUpper(text)
		if reaches(text) || strings.Contains(upper, "LO_") || strings.Contains(upper, "LOWRITE") || strings.Contains(upper, "STDIN") || strings.Contains(text, "\x00") {
			return // what comes in by COPY is not of the text
		}
		class := Classify(Postgres, text)
		did, tags, err := p.run(t, text)
		what := did.against(class)
		if class.Kind == Read && what == "" {
			for _, tag := range tags {
				if !slices.Contains([]string{"SELECT", "SHOW", "EXPLAIN", "FETCH", "MOVE"}, tag) {
					what = "answered with " + tag
				}
			}
		}
		if what != "" {
			t.Fatalf("%q is read as %s; PostgreSQL %s; it answered with %q; %v", text, describe(class), what, tags, err)
		}
	})
}

const (
	tablesOfPostgreSQL = `CREATE TABLE t (id SERIAL PRIMARY KEY, a INT, b INT, n INT, s TEXT);
CREATE TABLE u (id SERIAL PRIMARY KEY, a INT, b INT, n INT, s TEXT);
CREATE SEQUENCE s; CREATE VIEW v AS SELECT * FROM t;
`
	rowsOfPostgreSQL = `DELETE FROM NAME.t; INSERT INTO NAME.t VALUES (1, 1, 1, 1, 'a'), (2, 2, 2, 2, 'b'), (3, 3, 3, 3, 'c');
DELETE FROM NAME.u; INSERT INTO NAME.u VALUES (1, 1, 1, 1, 'a'), (2, 2, 2, 2, 'b')`
	// This is the number of rows of tables and catalogs changed by the session, in this transaction
	// and in earlier ones not yet counted elsewhere.
	writtenInPostgreSQL = `SELECT coalesce(sum(n) FILTER (WHERE schemaname NOT IN ('pg_catalog', 'pg_toast') AND schemaname NOT LIKE 'pg\_temp%'), 0), coalesce(sum(n) FILTER (WHERE schemaname = 'pg_catalog'), 0)
FROM (SELECT schemaname, n_tup_ins + n_tup_upd + n_tup_del AS n FROM pg_catalog.pg_stat_xact_all_tables) x`
	contentsOfPostgreSQL = `SELECT (SELECT string_agg(x::text, ';' ORDER BY x::text) FROM NAME.t x), (SELECT string_agg(x::text, ';' ORDER BY x::text) FROM NAME.u x)`
	// This is the lasting effect of a text after its transaction.
	sessionOfPostgreSQL = `SELECT concat_ws(' ', (SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_catalog.pg_settings WHERE source = 'session'), session_user, current_user,
(SELECT count(*) FROM pg_catalog.pg_prepared_statements), (SELECT count(*) FROM pg_catalog.pg_cursors), (SELECT count(*) FROM pg_catalog.pg_listening_channels()),
(SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'advisory'),
(SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.pg_my_temp_schema()))`
)

// postgreSQL is a database, and a role of its name with a schema in it and no rights elsewhere.
type postgreSQL struct {
	name    string
	admin   *pgconn.PgConn
	config  *pgconn.Config // of the role
	conn    *pgconn.PgConn // of the role
	session string         // what one says of itself at first
}

func newPostgreSQL(f *testing.F) *postgreSQL {
	f.Helper()
	db := testdb.Postgres(f)
	p := &postgreSQL{name: db.Name}
	var err error
	if p.config, err = pgconn.ParseConfig(db.DSN); err != nil {
		f.Fatal(err)
	}
	if p.admin, err = pgconn.ConnectConfig(f.Context(), p.config); err != nil {
		f.Fatal(err)
	}
	p.config = p.config.Copy()
	p.config.User, p.config.Password = p.name, p.name
	p.order(f, "CREATE ROLE NAME LOGIN PASSWORD 'NAME'")
	f.Cleanup(func() {
		if p.conn != nil {
			_ = p.conn.Close(context.Background())
		}
		p.order(f, "DROP OWNED BY NAME CASCADE; DROP ROLE NAME")
		_ = p.admin.Close(context.Background())
	})
	p.restore(f)
	p.open(f)
	for range tries {
		if session := p.ask(f.Context(), sessionOfPostgreSQL); session != nil {
			p.session = session[0]
			return p
		}
	}
	f.Fatal("the server does not say what a session is")
	return nil
}

func (p *postgreSQL) open(t testing.TB) {
	t.Helper()
	var err error
	if p.conn, err = pgconn.ConnectConfig(t.Context(), p.config); err != nil {
		t.Fatal(err)
	}
}

// order lets the administrator run statements.
func (p *postgreSQL) order(t testing.TB, text string) {
	t.Helper()
	if _, err := p.admin.Exec(context.WithoutCancel(t.Context()), strings.ReplaceAll(text, "NAME", p.name)).ReadAll(); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// restore recreates everything that the role may change.
func (p *postgreSQL) restore(t testing.TB) {
	t.Helper()
	p.order(t, "DROP OWNED BY NAME CASCADE; ALTER ROLE NAME RESET ALL; ALTER ROLE NAME LOGIN PASSWORD 'NAME' CONNECTION LIMIT -1 VALID UNTIL 'infinity'; "+
		"ALTER ROLE NAME SET statement_timeout = '500ms'; ALTER ROLE NAME SET lock_timeout = '500ms'; ALTER ROLE NAME SET search_path = NAME; "+
		"CREATE SCHEMA NAME AUTHORIZATION NAME; SET SESSION AUTHORIZATION NAME; SET search_path = NAME; "+tablesOfPostgreSQL+"RESET SESSION AUTHORIZATION; "+rowsOfPostgreSQL)
}

// ask returns the columns of a row; nil from a broken session.
func (p *postgreSQL) ask(ctx context.Context, query string) (row []string) {
	results, err := p.conn.Exec(ctx, query).ReadAll()
	if err != nil || len(results[0].Rows) != 1 {
		return nil
	}
	for _, column := range results[0].Rows[0] {
		row = append(row, string(column))
	}
	return row
}

// begin begins a transaction, and returns the counts before it. The server may break the connection
// here, too.
func (p *postgreSQL) begin(t *testing.T) (before []string) {
	t.Helper()
	var err error
	for range tries {
		if p.conn.IsClosed() {
			p.open(t)
		}
		if _, err = p.conn.Exec(t.Context(), "BEGIN").ReadAll(); err == nil {
			if before = p.ask(t.Context(), writtenInPostgreSQL); before != nil {
				return before
			}
		}
		p.end(t)
	}
	t.Fatalf("no transaction begins: %v", err)
	return nil
}

// run runs a text within a transaction, commits it if possible, and restores the previous state.
// tags are the executed statements; the error is the text's.
func (p *postgreSQL) run(t *testing.T, text string) (did deed, tags []string, err error) {
	t.Helper()
	before := p.begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	results, err := p.conn.Exec(ctx, text).ReadAll()
	for _, r := range results {
		if tag := r.CommandTag.String(); r.Err == nil && tag != "" {
			tag, _, _ = strings.Cut(tag, " 0")
			tags = append(tags, strings.TrimRight(tag, " 0123456789"))
		}
	}
	status := p.conn.TxStatus()
	did.several = len(tags) > 1
	did.committed = slices.Contains(tags, "COMMIT")
	did.lost = status == 'I' && !did.committed && !p.conn.IsClosed()
	did.begun = slices.Contains(tags, "BEGIN") || slices.Contains(tags, "START TRANSACTION") || did.committed && status == 'T'
	if status == 'T' {
		if written := p.ask(ctx, writtenInPostgreSQL); written != nil {
			did.rows, did.defined = written[0] != before[0], written[1] != before[1]
		}
		_, _ = p.conn.Exec(ctx, "COMMIT").ReadAll() // a constraint may forbid it
		if session := p.ask(ctx, sessionOfPostgreSQL); session != nil {
			did.session = session[0] != p.session
		}
	}
	_, _ = p.conn.Exec(ctx, "ROLLBACK").ReadAll()
	if _, left := p.conn.Exec(ctx, "DISCARD ALL").ReadAll(); left != nil {
		p.end(t)
	}
	switch {
	case did.defined || status != 'T' && status != 'E':
		p.restore(t)
	case did.rows:
		p.order(t, rowsOfPostgreSQL)
	}
	return did, tags, err
}

// end ends the session with its possible locks, and waits until it is gone.
func (p *postgreSQL) end(t *testing.T) {
	t.Helper()
	_ = p.conn.Close(t.Context())
	p.order(t, fmt.Sprintf("SELECT pg_terminate_backend(%d, 10000)", p.conn.PID()))
}
