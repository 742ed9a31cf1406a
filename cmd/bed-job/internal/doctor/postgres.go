package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/bedsql/bed/internal/target"
)

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
