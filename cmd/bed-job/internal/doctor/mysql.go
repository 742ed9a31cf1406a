package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/tables"
)

// mysqlServer is a MySQL or MariaDB server and the database there.
type mysqlServer struct{ *patient }

func (p mysqlServer) look(ctx context.Context) {
	if !p.readVars(ctx, "SHOW VARIABLES") {
		return
	}
	if fraction(p.vars["max_statement_time"]) > 0 {
		_, _ = p.conn.ExecContext(ctx, "SET SESSION max_statement_time = 0") // it would cut off this look too
	}
	if p.product = dbserver.MySQLProduct(p.vars["version"]); strings.Contains(strings.ToLower(p.vars["version"]+p.vars["version_comment"]), "mariadb") {
		p.product = "MariaDB"
	}
	p.server = "mysql " + p.vars["hostname"] + ":" + p.vars["port"] + p.vars["datadir"]
	if p.galera(ctx); p.out {
		return // it answers no SELECT
	}
	p.place = p.text(ctx, "SELECT DATABASE()")
	p.most = number(p.vars["max_connections"])
	if n := number(p.vars["max_user_connections"]); n > 0 && (p.most == 0 || n < p.most) {
		p.most = n
	}
	p.version()
	p.settings("innodb_lock_wait_timeout", time.Second)
	p.packet()
	p.readOnly(ctx)
	p.tables(ctx)
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func on(v string) bool { return strings.EqualFold(v, "ON") || v == "1" || strings.EqualFold(v, "YES") }

func (p mysqlServer) version() {
	version := p.vars["version"]
	all := strings.ToLower(version + " " + p.vars["version_comment"])
	if p.product == "TiDB" {
		// Empty is optimistic too.
		if mode, known := p.vars["tidb_txn_mode"]; known && !strings.EqualFold(mode, "pessimistic") {
			p.find("tidb_txn_mode", "TiDB runs transactions optimistically (tidb_txn_mode): conflicts and duplicate keys are reported only at COMMIT, so that a receipt is not recognised, and no row is locked before",
				"SET GLOBAL tidb_txn_mode = 'pessimistic'")
		}
		return // its versions are its own
	}
	if strings.Contains(all, "vitess") || strings.Contains(all, "clickhouse") || strings.Contains(all, "doris") || strings.Contains(all, "oceanbase") {
		p.find("product", "the server is none of MySQL's or MariaDB's ("+version+" "+p.vars["version_comment"]+"): what bed promises was not tested there",
			"use MySQL, MariaDB or TiDB, or test with your own faults first")
		return
	}
	// MariaDB may put 5.5.5- in front of its version.
	p.tooOld(strings.TrimPrefix(version, "5.5.5-"))
}

// packet looks whether what MaxUnitBytes allows in one entry by default fits, with what
// surrounds it.
func (p mysqlServer) packet() {
	if packet := number(p.vars["max_allowed_packet"]); p.isLog && packet > 0 && packet < 4<<20+1<<16 {
		p.find("max_allowed_packet", fmt.Sprintf("max_allowed_packet is %d bytes: a write of up to 4 MiB (MaxUnitBytes) is not accepted, because its entry does not fit", packet),
			"set it to 16M in the server's option file, or MaxUnitBytes lower")
	}
}

func fraction(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

func orNone(s string) string { return cmp.Or(s, "empty") }

func (p mysqlServer) readOnly(ctx context.Context) {
	for _, name := range []string{"super_read_only", "innodb_read_only", "read_only", "tx_read_only", "transaction_read_only"} {
		v := p.vars[name]
		if !on(v) && !strings.HasPrefix(strings.ToUpper(v), "READ_ONLY") {
			continue
		}
		p.find("read-only", fmt.Sprintf("%s is %s: %s", name, v, p.readOnlyMeans()), "lead the DSN to the primary, or turn it off there")
		return
	}
	if v := p.text(ctx, "SELECT @@innodb_force_recovery"); v != "" && v != "0" {
		p.find("read-only", "innodb_force_recovery is "+v+": InnoDB takes no writes", "restore the server and remove it from the option file")
	}
}

// transactional engines roll back.
var transactional = []string{"INNODB", "ROCKSDB", "TOKUDB", "NDBCLUSTER", "NDB", "VIEW", "SEQUENCE", "SPIDER", "FEDERATED"}

// tables looks for tables without transactions, and whether any can be written.
func (p mysqlServer) tables(ctx context.Context) {
	if p.place == "" {
		p.find("database", "the DSN names no database", "put it behind the address: user@tcp(host:3306)/name")
		return
	}
	rows, err := p.rows(ctx, `SELECT table_name, COALESCE(engine, '?') FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY table_name`)
	if err != nil {
		return
	}
	ours := ourTables{p.patient}.ours()
	var loose []string
	for _, r := range rows {
		mine := slices.ContainsFunc(ours, func(t tables.Table) bool { return t.Name == r[0] })
		if plain := !slices.Contains(transactional, strings.ToUpper(r[1])) && r[1] != "?"; plain && !mine && !p.isLog {
			loose = append(loose, r[0]+" ("+r[1]+")")
		}
	}
	if len(loose) > 0 {
		p.find("no-transactions", fmt.Sprintf("%s without transactions: %s. A write there cannot be rolled back, so that it may be applied in part or twice",
			count(len(loose), "table", "tables"), list(loose)), "ALTER TABLE … ENGINE = InnoDB, or write to them under bedsql.Skip")
	}
	if !p.isLog && !p.mayWrite(ctx, rows) {
		p.find("rights", writesNowhere, p.grant(ctx, quote(p.place)+".*"))
	}
}

// mayWrite reports whether the account may write to any of these tables.
func (p mysqlServer) mayWrite(ctx context.Context, tables [][]string) bool {
	for _, r := range tables[:min(len(tables), 50)] {
		for _, statement := range []string{"EXPLAIN DELETE FROM " + quote(r[0]) + " WHERE 1 = 0", "EXPLAIN INSERT INTO " + quote(r[0]) + " SELECT * FROM " + quote(r[0]) + " WHERE 1 = 0"} {
			if _, err := p.rows(ctx, statement); err == nil || !dberr.Of(err).Denied() {
				return true
			}
		}
	}
	return len(tables) == 0
}

// quote is a name in MySQL's quotes.
func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// galera looks at a node of a cluster.
func (p mysqlServer) galera(ctx context.Context) {
	if !on(p.vars["wsrep_on"]) {
		return
	}
	status := map[string]string{}
	if rows, err := p.rows(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep%'"); err == nil {
		for _, r := range rows {
			status[strings.ToLower(r[0])] = r[1]
		}
	}
	if v := status["wsrep_ready"]; v != "" && !on(v) || status["wsrep_cluster_status"] != "" && status["wsrep_cluster_status"] != "Primary" {
		p.out = true
		p.find("galera", fmt.Sprintf("the node is outside of its cluster's primary component (wsrep_ready %s, %s): it takes no writes", status["wsrep_ready"], status["wsrep_cluster_status"]),
			"lead the DSN to a node of the primary component")
		return
	}
	p.cluster = status["wsrep_cluster_state_uuid"]
	if number(status["wsrep_cluster_size"]) > 1 && number(p.vars["wsrep_sync_wait"])&1 == 0 {
		p.find("galera", "it is a node of a Galera cluster and wsrep_sync_wait is "+p.vars["wsrep_sync_wait"]+": what another node reported as committed may not be visible here yet",
			"lead all DSNs to one node that is written to, and set wsrep_sync_wait=1 in them for when that one changes")
	}
}

// count and list are for sentences.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func list(names []string) string {
	if len(names) > 5 {
		return strings.Join(names[:5], ", ") + " and others"
	}
	return strings.Join(names, ", ")
}
