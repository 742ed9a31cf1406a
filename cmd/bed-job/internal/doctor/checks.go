package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dbserver"
)

// A check is about settings in the sessions of a DSN. A finding is "SETTING is VALUE: MEANS", for
// the first wrong setting.
type check struct {
	// name is the name of the finding; empty for the setting's name.
	name string
	// settings are separated by spaces; unknown ones are right.
	settings string
	wrong    func(p *patient, value string) bool
	// In both, {lost} is the effect of answering a commit before it is on disk, {refused} the
	// effect of being read-only, and {oldest} the oldest supported version.
	means, remedy string
}

func is(values ...string) func(*patient, string) bool {
	return func(_ *patient, v string) bool {
		return slices.ContainsFunc(values, func(one string) bool { return strings.EqualFold(one, v) })
	}
}

func isNot(values ...string) func(*patient, string) bool {
	return func(p *patient, v string) bool { return v != "" && !is(values...)(p, v) }
}

var isOff = is("OFF", "0", "NO", "")

func on(v string) bool { return !isOff(nil, v) }

// allOf combines checks: the setting is wrong if all say so.
func allOf(each ...func(*patient, string) bool) func(*patient, string) bool {
	return func(p *patient, v string) bool {
		return !slices.ContainsFunc(each, func(wrong func(*patient, string) bool) bool { return !wrong(p, v) })
	}
}

// Without a binary log there is none to lose or to disagree with.
func withBinlog(p *patient, _ string) bool { return on(p.vars["log_bin"]) }

func isTarget(p *patient, _ string) bool { return !p.isLog }

// longerThanDelivery is of the wait for a lock.
func longerThanDelivery(p *patient, v string) bool { return lasts(p, v) >= p.x.Job.DeliveryTimeout }

// older reports versions before the oldest supported one.
func older(p *patient, version string) bool {
	older, _ := dbserver.Older(p.product, version, p.isLog)
	return older
}

// tooShort checks a time after which a setting cuts something off; 0 means never.
func tooShort(settings string, least time.Duration, means string) check {
	return check{"", settings, func(p *patient, v string) bool { return lasts(p, v) > 0 && lasts(p, v) < least }, means,
		fmt.Sprintf("set it to at least %v in the DSN, or for the account", least)}
}

// lasts reads a time: MySQL's are in seconds, PostgreSQL's in milliseconds.
func lasts(p *patient, v string) time.Duration {
	n, _ := strconv.ParseFloat(v, 64)
	if p.Driver == "postgres" {
		n /= 1000
	}
	return time.Duration(n * float64(time.Second))
}

const (
	fromDSN    = "remove it from the DSN, of the application and of the job alike"
	untested   = "what bed promises was not tested on this product"
	useOthers  = "use MySQL, MariaDB, TiDB or PostgreSQL, or test with your own faults first"
	cutsWait   = "a statement that waits for a lock is cut off at once"
	noWait     = "a statement that meets a lock is refused at once, and deliveries use up their tries against each other"
	endsTx     = "transactions are ended between their statements"
	closesIdle = "the server closes connections that the pool keeps, and what is sent on one just then stays in doubt"
	staysTorn  = "a crash of the machine while a page is written destroys it"
	outWaits   = "the job gives a delivery no longer than that: one that waits for a lock is cut off and stays in doubt instead of getting that error"
	primary    = "lead the DSN to the primary"
)

// checks are those of each driver.
var checks = map[string][]check{
	"mysql": {
		{"version", "version", older, "it is older than what bed is known to work with", "use {oldest} or later"},
		{"product", "version version_comment", func(_ *patient, v string) bool {
			return slices.ContainsFunc([]string{"vitess", "clickhouse", "doris", "oceanbase"}, func(name string) bool { return strings.Contains(strings.ToLower(v), name) })
		}, untested, useOthers},
		{"", "tidb_txn_mode", func(_ *patient, v string) bool { return !strings.EqualFold(v, "pessimistic") }, // empty is optimistic too
			"conflicts and duplicate keys are reported only at COMMIT, so that a receipt is not recognised, and no row is locked before", "SET GLOBAL tidb_txn_mode = 'pessimistic'"},
		{"galera", "wsrep_ready wsrep_cluster_status", isNot("ON", "Primary"), "the node is outside of its cluster's primary component and takes no writes", "lead the DSN to a node of the primary component"},
		{"galera", "wsrep_sync_wait", func(p *patient, v string) bool { return number(p.vars["wsrep_cluster_size"]) > 1 && number(v)&1 == 0 },
			"what another node of the cluster reported as committed may not be visible here yet", "lead all DSNs to one node that is written to, and set wsrep_sync_wait=1 in them for when that one changes"},
		{"read-only", "super_read_only innodb_read_only read_only tx_read_only transaction_read_only innodb_force_recovery", isNot("OFF", "0"),
			"{refused}", primary + ", or turn it off there"},
		{"", "innodb_flush_log_at_trx_commit", isNot("1", "3"), "{lost}", "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the server's option file"},
		{"", "innodb_doublewrite", isOff, staysTorn, "turn it on in the server's option file, unless the file system writes whole pages (ZFS)"},
		{"", "innodb_flush_method", func(p *patient, v string) bool {
			return is("nosync")(p, v) || is("O_DIRECT_NO_FSYNC")(p, v) && p.product == "MariaDB"
		}, "{lost}", "remove it from the server's option file, or set O_DIRECT"},
		{"", "sync_binlog", allOf(withBinlog, isNot("1")), "after a crash of the machine replicas and backups made from the binary log lack commits, or have others than the server",
			"SET GLOBAL sync_binlog = 1, and the same in the server's option file"},
		{"", "binlog_format", allOf(withBinlog, is("STATEMENT")), "receipts cannot be erased or purged (error 1665 at READ COMMITTED), and replicas may apply other rows than the server did",
			"SET GLOBAL binlog_format = 'ROW' (or MIXED), and the same in the server's option file; sessions that are open keep the old one"},
		{"", "sql_mode", allOf(isTarget, func(_ *patient, v string) bool {
			return !strings.Contains(v, "STRICT_TRANS_TABLES") && !strings.Contains(v, "STRICT_ALL_TABLES")
		}), "it is not strict: a value that does not fit is cut or changed, and counts as delivered",
			"add STRICT_TRANS_TABLES to sql_mode in the server's option file, or sql_mode='…' to the DSN of the application and of the job alike"},
		{"", "max_allowed_packet", func(p *patient, v string) bool { return p.isLog && number(v) < 4<<20+1<<16 },
			"a write of up to 4 MiB (MaxUnitBytes) is not accepted, because its entry does not fit", "set it to 16M in the server's option file, or MaxUnitBytes lower"},
		{"", "autocommit", isOff, "a write on its own stays open until something ends it", "set autocommit = 1 in the server's option file, or in the DSN"},
		{"", "sql_log_bin", isOff, "what is written is not in the binary log: replicas and restored backups lack it", fromDSN},
		{"", "foreign_key_checks", isOff, "rows that refer to nothing are written, and count as delivered", fromDSN},
		{"", "unique_checks", isOff, "rows that stand there twice may be written, and count as delivered", fromDSN},
		{"", "check_constraint_checks", isOff, "rows that a CHECK forbids are written, and count as delivered", fromDSN},
		{"lock-wait", "innodb_lock_wait_timeout", allOf(isTarget, longerThanDelivery), outWaits, "set jobConfig.deliveryTimeoutMillis above it"},
		{"lock-wait", "innodb_lock_wait_timeout", is("0"), noWait, "set it to seconds in the DSN, or for the account"},
		{"", "max_prepared_stmt_count", func(_ *patient, v string) bool { return number(v) < 1024 }, "the server refuses prepared statements, with which most writes are sent", "SET GLOBAL max_prepared_stmt_count = 16382, and the same in the server's option file"},
		{"isolation", "transaction_isolation tx_isolation", allOf(isTarget, is("READ-UNCOMMITTED")), "a write may rest on rows of others that are rolled back", "set READ COMMITTED or stricter in the server's option file, or in the DSN of the application and of the job alike"},
		tooShort("max_statement_time", time.Second, cutsWait),
		tooShort("wait_timeout", 30*time.Second, closesIdle),
		tooShort("idle_transaction_timeout idle_write_transaction_timeout", 5*time.Second, endsTx),
	},
	"postgres": {
		{"version", "server_version", older, "it is older than what bed is known to work with", "use {oldest} or later"},
		{"product", "version()", func(_ *patient, v string) bool {
			return !strings.HasPrefix(v, "PostgreSQL ") || dbserver.PostgresProduct(v) != "PostgreSQL"
		}, untested, useOthers},
		{"read-only", "pg_is_in_recovery()", is("true"), "it is a standby, and {refused}", primary + " (several hosts and target_session_attrs=read-write find it)"},
		{"read-only", "default_transaction_read_only transaction_read_only", func(p *patient, v string) bool { return v == "on" && p.vars["pg_is_in_recovery()"] != "true" },
			"{refused}", "turn it off for the account (ALTER ROLE … SET), the database or in the DSN"},
		{"encoding", "server_encoding", isNot("UTF8", "SQL_ASCII"), "SQL and values that it cannot hold are refused", "create the database with ENCODING 'UTF8'"},
		{"", "search_path", func(p *patient, _ string) bool { return p.vars["current_schema()"] == "" }, "it leads to no schema that exists", "set search_path in the DSN, or create the schema"},
		{"", "fsync", is("off"), "a crash of the machine may destroy the whole database", "set fsync = on in postgresql.conf and reload"},
		{"", "synchronous_commit", is("off"), "{lost}", "set synchronous_commit = on in postgresql.conf, or for the account (ALTER ROLE … SET), or in the DSN"},
		{"", "full_page_writes", is("off"), staysTorn, "set full_page_writes = on in postgresql.conf and reload, unless the file system writes whole pages (ZFS)"},
		{"", "session_replication_role", is("replica"), "triggers do not fire and foreign keys are not checked, so that what counts as delivered is not what the application writes",
			"remove it from the DSN, or from the account (ALTER ROLE … RESET)"},
		{"lock-wait", "lock_timeout", allOf(isTarget, longerThanDelivery), outWaits, "set jobConfig.deliveryTimeoutMillis above it"},
		tooShort("lock_timeout", 100*time.Millisecond, noWait),
		tooShort("statement_timeout", time.Second, cutsWait),
		tooShort("idle_session_timeout", 30*time.Second, closesIdle),
		tooShort("transaction_timeout idle_in_transaction_session_timeout", 5*time.Second, endsTx),
	},
	"sqlite": {
		{"", "journal_mode", is("off", "memory"), "a crash in the middle of a write destroys the file", "set _pragma=journal_mode(wal) in the DSN"},
		{"", "synchronous", func(p *patient, v string) bool { return v == "0" || v == "1" && p.vars["journal_mode"] == "wal" },
			"{lost}", "set _pragma=synchronous(full) in the DSN"},
		{"", "busy_timeout", allOf(isTarget, is("0")), // the log sets its own
			"a write fails at once while another connection writes", "set _pragma=busy_timeout(5000) in the DSN"},
		{"", "locking_mode", is("exclusive"), "one process keeps the others out, the job from the application's file or the other way round", "remove it from the DSN"},
		{"read-only", "query_only", is("1"), "{refused}", "remove mode=ro, immutable and query_only from the DSN"},
	},
}

// lookAtSettings runs the checks in the table above.
func lookAtSettings(p *patient) {
	lost, refused := "a crash of the machine loses writes that count as delivered and are in the log no more", "nothing can be delivered there"
	if p.isLog {
		lost, refused = "a crash of the machine loses entries of writes that were promised to arrive", "the log takes no entries, so that no write is accepted"
	}
	_, oldest := dbserver.Older(p.product, "", p.isLog)
	fill := strings.NewReplacer("{lost}", lost, "{refused}", refused, "{oldest}", p.product+" "+oldest)
	for _, c := range checks[p.Driver] {
		for _, setting := range strings.Fields(c.settings) {
			if v, known := p.vars[setting]; known && c.wrong(p, v) {
				p.find(cmp.Or(c.name, setting), fmt.Sprintf("%s is %s: %s", setting, cmp.Or(v, "empty"), fill.Replace(c.means)), fill.Replace(c.remedy))
				break
			}
		}
	}
}
