package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
)

// mysqlServer is a MySQL or MariaDB server and the database there.
type mysqlServer struct{ *patient }

func (p mysqlServer) look(ctx context.Context) {
	p.vars = map[string]string{}
	rows, err := p.rows(ctx, "SHOW VARIABLES")
	if err != nil {
		p.x.unseen("%s: its settings cannot be read: %s", p.where, p.x.errorOf(err))
		return
	}
	for _, r := range rows {
		p.vars[strings.ToLower(r[0])] = r[1]
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
	p.durability()
	p.binlog()
	p.session()
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
			p.find("tidb_txn_mode", "TiDB runs transactions optimistically (tidb_txn_mode): conflicts and duplicate keys are told at COMMIT only, so that a receipt is not recognised, and no row is locked before",
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

func (p mysqlServer) durability() {
	if v := p.vars["innodb_flush_log_at_trx_commit"]; v != "" && v != "1" && v != "3" {
		p.find("innodb_flush_log_at_trx_commit", fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: %s", v, p.lost()),
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the server's option file")
	}
	if v := p.vars["innodb_doublewrite"]; strings.EqualFold(v, "OFF") || v == "0" {
		p.find("innodb_doublewrite", "innodb_doublewrite is off: a crash of the machine while a page is written destroys it",
			"turn it on in the server's option file, unless the file system writes whole pages (ZFS)")
	}
	if v := p.vars["innodb_flush_method"]; strings.EqualFold(v, "nosync") || strings.EqualFold(v, "O_DIRECT_NO_FSYNC") && p.product == "MariaDB" {
		p.find("innodb_flush_method", "innodb_flush_method is "+v+": "+p.lost(), "remove it from the server's option file, or set O_DIRECT")
	}
}

func (p mysqlServer) binlog() {
	if !on(p.vars["log_bin"]) {
		return // there is none to lose or to disagree with
	}
	if v := p.vars["sync_binlog"]; v != "1" {
		p.find("sync_binlog", fmt.Sprintf("the binary log is on and sync_binlog is %s: after a crash of the machine replicas and backups made from it lack commits, or have others than the server", v),
			"SET GLOBAL sync_binlog = 1, and the same in the server's option file")
	}
	if v := p.vars["binlog_format"]; strings.EqualFold(v, "STATEMENT") {
		p.find("binlog_format", "binlog_format is STATEMENT: receipts cannot be erased or purged (error 1665 at READ COMMITTED), and replicas may apply other rows than the server did",
			"SET GLOBAL binlog_format = 'ROW' (or MIXED), and the same in the server's option file; sessions that are open keep the old one")
	}
}

// session looks at what the sessions of this DSN have.
func (p mysqlServer) session() {
	mode := strings.ToUpper(p.vars["sql_mode"])
	if !p.isLog && !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES") {
		p.find("sql_mode", fmt.Sprintf("sql_mode is not strict (%s): a value that does not fit is cut or changed, and counts as delivered", orNone(p.vars["sql_mode"])),
			"add STRICT_TRANS_TABLES to sql_mode in the server's option file, or sql_mode='…' to the DSN of the application and of the job alike")
	}
	if !on(p.vars["autocommit"]) {
		p.find("autocommit", "sessions begin with autocommit off: a write on its own stays open until something ends it", "set autocommit = 1 in the server's option file, or in the DSN")
	}
	if wait := number(p.vars["innodb_lock_wait_timeout"]); !p.isLog && wait > 0 && p.x.Job.DeliveryTimeout.Seconds() <= float64(wait) {
		p.find("lock-wait", fmt.Sprintf("innodb_lock_wait_timeout is %d s, the job gives a delivery only %v: one that waits for a lock is cut off and stays in doubt instead of being told so", wait, p.x.Job.DeliveryTimeout),
			fmt.Sprintf("set jobConfig.deliveryTimeoutMillis above %d", wait*1000))
	}
	// What MaxUnitBytes allows in one entry by default, with what surrounds it.
	if packet := number(p.vars["max_allowed_packet"]); p.isLog && packet > 0 && packet < 4<<20+1<<16 {
		p.find("max_allowed_packet", fmt.Sprintf("max_allowed_packet is %d bytes: a write of up to 4 MiB (MaxUnitBytes) is not accepted, because its entry does not fit", packet),
			"set it to 16M in the server's option file, or MaxUnitBytes lower")
	}
}

func orNone(s string) string {
	if s == "" {
		return "empty"
	}
	return s
}

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
	rows, err := p.rows(ctx, `SELECT table_name, COALESCE(engine, '?'), COALESCE(table_collation, '') FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY table_name`)
	if err != nil {
		return
	}
	ours, _ := ours(p.Driver, p.isLog)
	var loose []string
	for _, r := range rows {
		mine := slices.ContainsFunc(ours, func(t table) bool { return t.name == r[0] })
		plain := !slices.Contains(transactional, strings.ToUpper(r[1])) && r[1] != "?"
		switch {
		case mine && plain:
			p.find("engine", fmt.Sprintf("the table %s is kept by %s, which has no transactions: nothing that bed promises holds", r[0], r[1]),
				"ALTER TABLE "+r[0]+" ENGINE = InnoDB, while neither applications nor jobs run")
		case mine && p.isLog && r[2] != "" && !strings.HasPrefix(r[2], "utf8mb4"):
			p.find("charset", fmt.Sprintf("the table %s has the collation %s: SQL and values that it cannot hold are refused, or stored as other letters", r[0], r[2]),
				fmt.Sprintf("ALTER TABLE %s with the character sets of bed-job schema mysql --log", r[0]))
		case plain && !p.isLog:
			loose = append(loose, r[0]+" ("+r[1]+")")
		}
	}
	if len(loose) > 0 {
		p.find("no-transactions", fmt.Sprintf("%s without transactions: %s. A write there cannot be rolled back, so that it may be applied in part or twice",
			count(len(loose), "table", "tables"), list(loose)), "ALTER TABLE … ENGINE = InnoDB, or write to them under bedsql.Skip")
	}
	p.mayWrite(ctx, rows)
}

// mayWrite reports an account that may write to none of a target's tables.
func (p mysqlServer) mayWrite(ctx context.Context, tables [][]string) {
	if p.isLog || len(tables) == 0 {
		return
	}
	for _, r := range tables[:min(len(tables), 50)] {
		name := "`" + strings.ReplaceAll(r[0], "`", "``") + "`"
		for _, statement := range []string{"EXPLAIN DELETE FROM " + name + " WHERE 1 = 0", "EXPLAIN INSERT INTO " + name + " SELECT * FROM " + name + " WHERE 1 = 0"} {
			if _, err := p.rows(ctx, statement); err == nil || !dberr.Of(err).Denied() {
				return
			}
		}
	}
	p.find("rights", "the account may write to none of the tables there", p.grantAll(ctx))
}

func (p mysqlServer) grantAll(ctx context.Context) string {
	user, host, _ := strings.Cut(p.text(ctx, "SELECT CURRENT_USER()"), "@")
	return fmt.Sprintf("as an administrator: GRANT SELECT, INSERT, UPDATE, DELETE ON `%s`.* TO '%s'@'%s'", p.place, user, host)
}

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
		p.find("galera", "it is a node of a Galera cluster and wsrep_sync_wait is "+p.vars["wsrep_sync_wait"]+": what another node was told is committed may not be seen here yet",
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
