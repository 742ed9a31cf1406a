package doctor

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/target"
)

// lookAtMySQL looks at a server of MySQL or MariaDB and the database there.
func lookAtMySQL(ctx context.Context, p *patient) {
	if !p.readVars(ctx, "SHOW VARIABLES") {
		return
	}
	if lasts(p, p.vars["max_statement_time"]) > 0 {
		_, _ = p.db.ExecContext(ctx, "SET SESSION max_statement_time = 0") // it would cut off this look too
	}
	if on(p.vars["wsrep_on"]) {
		p.readVars(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep%'")
	}
	p.product, p.cluster = dbserver.MySQLProduct(p.vars["version"]), p.vars["wsrep_cluster_state_uuid"]
	p.server = "mysql " + p.vars["hostname"] + ":" + p.vars["port"] + p.vars["datadir"]
	p.most = number(p.vars["max_connections"])
	if n := number(p.vars["max_user_connections"]); n > 0 {
		p.most = min(p.most, n)
	}
	lookAtSettings(p)
	if ready, known := p.vars["wsrep_ready"]; known && !on(ready) {
		p.out = true // it answers no SELECT
		return
	}
	if p.place = p.text(ctx, "SELECT DATABASE()"); p.place == "" {
		p.find("database", "the DSN names no database", "put it behind the address: user@tcp(host:3306)/name")
		return
	}
	if !p.isLog {
		p.tables(ctx, "SELECT CONCAT('`', REPLACE(table_name, '`', '``'), '`'), CASE WHEN UPPER(engine) IN ("+transactional+`) THEN '' ELSE COALESCE(engine, '') END
			FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name NOT IN ('bed_receipt', 'bed_order') ORDER BY table_name`,
			"no-transactions", "without transactions: a write there cannot be rolled back, so that it may be applied in part or twice", "ALTER TABLE … ENGINE = InnoDB, or write to them under bedsql.Unlogged")
	}
}

// transactional engines roll back.
const transactional = "'INNODB', 'ROCKSDB', 'TOKUDB', 'NDBCLUSTER', 'SEQUENCE', 'SPIDER', 'FEDERATED'"

// postgresSettings reads the session's settings, and other facts needed once.
const postgresSettings = `SELECT name, setting FROM pg_settings
UNION ALL SELECT 'version()', version()
UNION ALL SELECT 'pg_is_in_recovery()', pg_is_in_recovery()::text
UNION ALL SELECT 'current_schema()', current_schema()::text
UNION ALL SELECT 'current_database()', current_database()::text
UNION ALL SELECT 'pg_postmaster_start_time()', pg_postmaster_start_time()::text
UNION ALL SELECT 'connections', LEAST(
  (SELECT sum(CASE name WHEN 'max_connections' THEN 1 ELSE -1 END * setting::int) FROM pg_settings
    WHERE name IN ('max_connections', 'superuser_reserved_connections', 'reserved_connections')),
  (SELECT NULLIF(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
  (SELECT NULLIF(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))::text`

// lookAtPostgres looks at a server and the database there.
func lookAtPostgres(ctx context.Context, p *patient) {
	if !p.readVars(ctx, postgresSettings) {
		return
	}
	p.product, p.server = "PostgreSQL", "postgres "+p.vars["pg_postmaster_start_time()"]+" "+p.vars["port"]
	p.place = p.vars["current_database()"] + "." + p.vars["current_schema()"]
	p.most = number(p.vars["connections"])
	lookAtSettings(p)
	p.tables(ctx, `SELECT quote_ident(c.relname)::text, CASE c.relpersistence WHEN 'u' THEN 'UNLOGGED' ELSE '' END FROM pg_class c
		WHERE c.relkind IN ('r', 'p') AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) ORDER BY 1`,
		"unlogged", "not in the write-ahead log, PostgreSQL empties them after a crash", "ALTER TABLE … SET LOGGED")
	lookAtPooler(ctx, p)
}

// lookAtPooler finds out whether a pooler leaves the session without transactions, or without
// settings from the DSN: poolers pass on few settings, and can be configured to ignore the others.
func lookAtPooler(ctx context.Context, p *patient) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		p.find("pooler", "no transaction can be begun: "+errorOf(err)+". A pooler in statement mode stands before the server",
			"pool_mode = transaction or session for this database in the pooler's configuration")
		return
	}
	_ = tx.Rollback()
	conn, _, err := target.Dial(ctx, &p.Target)
	if err != nil {
		p.x.add(&p.x.report.Unseen, "%s: cannot open a second connection: %s", p.where, errorOf(err))
		return
	}
	defer func() { _ = conn.Close() }()
	var differs *target.ElsewhereError
	if errors.As(target.StillIn(ctx, &p.Target, conn), &differs) {
		_, both, _ := strings.Cut(differs.Why, "a session that has ")
		p.find("pooler", "the DSN asks the pooler for "+both+": a write may go to another place or mean another value",
			"remove them from the pooler's ignore_startup_parameters and add them to track_extra_parameters, or set them for the account: ALTER ROLE … SET")
	}
}

// lookAtSQLite looks at a database as sessions of its DSN open it.
func lookAtSQLite(ctx context.Context, p *patient) {
	p.vars = map[string]string{}
	for _, name := range []string{"journal_mode", "synchronous", "busy_timeout", "query_only", "locking_mode"} {
		p.vars[name] = strings.ToLower(p.text(ctx, "PRAGMA "+name))
	}
	if strings.Contains(p.DSN, "mode=ro") || strings.Contains(p.DSN, "immutable=1") {
		p.vars["query_only"] = "1"
	}
	p.product, p.server, p.place = "SQLite", "sqlite "+p.Target.File, p.Target.File
	lookAtSettings(p)
	if f, err := os.OpenFile(p.Target.File, os.O_RDWR, 0); err == nil {
		_ = f.Close()
	} else if p.Target.File != "" {
		p.find("read-only", "the file may not be written: "+err.Error(), "chown and chmod it, and its directory, so that the accounts of the application and of the job may write both")
	}
}

// lookAtBroker examines the DSN of a message broker.
func lookAtBroker(p *patient) {
	scheme, rest, _ := strings.Cut(p.DSN, "://")
	rest, query, _ := strings.Cut(rest, "?")
	at := strings.LastIndex(rest, "@")
	q, _ := url.ParseQuery(query)
	password := at >= 0 && strings.Contains(rest[:at], ":") || p.Access.HasPassword()
	seen := password && !p.Access.HasTLS() && (scheme == "amqp" || scheme == "nats" || scheme == "kafka" && q.Get("tls") != "true") && (scheme == "kafka" || !isLoopback(rest[at+1:]))
	p.findIf(seen, "password", "its password is sent without TLS: whoever sees the network can read it",
		map[string]string{"kafka": "add tls=true to the DSN, or give the data source tls", "amqp": "use amqps://", "nats": "use tls://, or give the data source tls"}[scheme])
	if p.Driver == "nats" {
		p.x.add(&p.x.report.Notes, "%s: by default JetStream confirms a message before it is on disk (sync_interval is two minutes), and a power failure loses it: set sync_interval: always, or have replicas that do not fail together", p.where)
	}
}

// lookAtService examines the base URL of an HTTP service.
func lookAtService(p *patient) {
	base, err := url.Parse(p.DSN)
	p.findIf(err == nil && base.Scheme == "http" && p.Access.HasCredentials() && !isLoopback(base.Host), "password", "its credentials are sent without TLS: whoever sees the network can read them", "give it a base URL with https://")
	p.x.add(&p.x.report.Notes, "%s: a call is handled exactly once if the service is behind bedhttp, or recognizes the header Idempotency-Key in another way; else it may be handled several times", p.where)
}

// isLoopback reports whether an address is this machine's.
func isLoopback(address string) bool {
	host := strings.Split(address, "/")[0]
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
