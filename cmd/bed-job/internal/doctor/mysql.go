package doctor

import (
	"context"

	"github.com/bedsql/bed/internal/dbserver"
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
