package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// postgresServer is a PostgreSQL server and the database there.
type postgresServer struct{ *patient }

func (p postgresServer) look(ctx context.Context) {
	if !p.readVars(ctx, "SELECT name, setting FROM pg_settings") {
		return
	}
	p.product = "PostgreSQL"
	p.server = "postgres " + p.text(ctx, "SELECT pg_postmaster_start_time()::text") + " " + p.vars["port"]
	p.place = p.text(ctx, "SELECT current_database()::text || '.' || coalesce(current_schema()::text, '')")
	p.most = number(p.vars["max_connections"]) - number(p.vars["superuser_reserved_connections"]) - number(p.vars["reserved_connections"])
	for _, query := range []string{
		"SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user",
		"SELECT datconnlimit FROM pg_database WHERE datname = current_database()",
	} {
		if n := p.text(ctx, query); n != "" && n != "-1" && number(n) < p.most {
			p.most = number(n)
		}
	}
	version := p.text(ctx, "SELECT version()")
	if !strings.HasPrefix(version, "PostgreSQL ") || strings.Contains(version, "CockroachDB") || strings.Contains(version, "Yugabyte") || strings.Contains(version, "-YB-") {
		p.find("product", "the server speaks PostgreSQL's protocol but is none ("+version+"): what bed promises was not tested there", "use PostgreSQL, or test with your own faults first")
	}
	p.tooOld(p.vars["server_version"] + ".0")
	p.settings("lock_timeout", time.Millisecond)
	p.session(ctx)
	p.tables(ctx)
	p.pooler(ctx)
}

func (p postgresServer) session(ctx context.Context) {
	switch {
	case p.text(ctx, "SELECT pg_is_in_recovery()::text") == "true":
		p.find("read-only", "it is a standby: "+p.readOnlyMeans(), "lead the DSN to the primary (several hosts and target_session_attrs=read-write find it)")
	case p.vars["default_transaction_read_only"] == "on" || p.vars["transaction_read_only"] == "on":
		p.find("read-only", "default_transaction_read_only is on: "+p.readOnlyMeans(), "turn it off for the account (ALTER ROLE … SET), the database or in the DSN")
	}
	if v := p.vars["server_encoding"]; isNot("UTF8", "SQL_ASCII")(p.patient, v) {
		p.find("encoding", "the database's encoding is "+v+": SQL and values that it cannot hold are refused", "create the database with ENCODING 'UTF8'")
	}
	if schema := p.text(ctx, "SELECT current_schema()::text"); schema == "" {
		p.find("search_path", "search_path leads to no schema that exists: "+p.vars["search_path"], "set search_path in the DSN, or create the schema")
	}
}

func (p postgresServer) tables(ctx context.Context) {
	rows, err := p.rows(ctx, `SELECT c.relname::text, c.relpersistence::text,
			(has_table_privilege(c.oid, 'INSERT') OR has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE'))::text
		FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) ORDER BY 1`)
	if err != nil {
		return
	}
	var unlogged []string
	writable := len(rows) == 0
	for _, r := range rows {
		if r[1] == "u" {
			unlogged = append(unlogged, r[0])
		}
		writable = writable || r[2] == "true"
	}
	if len(unlogged) > 0 {
		p.find("unlogged", fmt.Sprintf("%s not in the write-ahead log: %s. PostgreSQL empties them after a crash", count(len(unlogged), "table is", "tables are"), list(unlogged)),
			"ALTER TABLE … SET LOGGED")
	}
	if !writable && !p.isLog {
		p.find("rights", writesNowhere, p.grant(ctx, "ALL TABLES IN SCHEMA "+p.text(ctx, "SELECT quote_ident(current_schema())")))
	}
}

// pooler finds out what is between the session and the server: a second client
// that is given the first one's session shows that sessions are shared.
func (p postgresServer) pooler(ctx context.Context) {
	first := p.text(ctx, "SELECT pg_backend_pid()")
	tx, err := p.conn.BeginTx(ctx, nil)
	if err != nil {
		p.find("pooler", "no transaction can be begun: "+p.x.errorOf(err)+". A pooler in statement mode stands before the server",
			"pool_mode = transaction or session for this database in the pooler's configuration")
		return
	}
	_ = tx.Rollback()
	other, err := p.db.Conn(ctx)
	if err != nil {
		p.x.unseen("%s: a second connection cannot be had: %s", p.where, p.x.errorOf(err))
		return
	}
	defer func() { _ = other.Close() }()
	var second string
	if err := other.QueryRowContext(ctx, "SELECT pg_backend_pid()::text").Scan(&second); err != nil || second != first || first == "" {
		return
	}
	p.pooledSettings(ctx)
}

// pooledSettings compares what a pooled session has with what its DSN asks for. A pooler
// passes on few settings, and may be set to ignore the others.
func (p postgresServer) pooledSettings(ctx context.Context) {
	for part := range strings.SplitSeq(p.Target.Settings, ";") {
		name, want, ok := strings.Cut(part, "=")
		has, known := p.vars[strings.ToLower(name)]
		if !ok || !known || same(has, want) || p.text(ctx, "SELECT current_setting($1::text)", name) == want {
			continue
		}
		p.find("pooler", fmt.Sprintf("the DSN sets %s to %s, but the pooler leaves the session with %s: a write may go to another place or mean another value", name, want, orNone(has)),
			fmt.Sprintf("remove %s from the pooler's ignore_startup_parameters and add it to track_extra_parameters, or set it for the account: ALTER ROLE … SET %s", name, name))
	}
}

func same(a, b string) bool {
	trim := strings.NewReplacer(" ", "", `"`, "", "'", "")
	return strings.EqualFold(trim.Replace(a), trim.Replace(b))
}
