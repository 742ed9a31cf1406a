package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A check is about one setting as the sessions of a DSN have it.
type check struct {
	setting string
	wrong   func(p *patient, value string) bool
	// In what {value} is the setting's, {lost} the effect of answering a commit before it is
	// on the disk.
	what, remedy string
}

func is(values ...string) func(*patient, string) bool {
	return func(_ *patient, v string) bool {
		return slices.ContainsFunc(values, func(one string) bool { return strings.EqualFold(one, v) })
	}
}

func isNot(values ...string) func(*patient, string) bool {
	return func(p *patient, v string) bool { return v != "" && !is(values...)(p, v) }
}

func isOff(_ *patient, v string) bool { return !on(v) }

// withBinlog: without a binary log there is none to lose or to disagree with.
func withBinlog(wrong func(*patient, string) bool) func(*patient, string) bool {
	return func(p *patient, v string) bool { return on(p.vars["log_bin"]) && wrong(p, v) }
}

const fromDSN = " from the DSN, of the application and of the job alike"

// checks are those of each driver.
var checks = map[string][]check{
	"mysql": {
		{"innodb_flush_log_at_trx_commit", isNot("1", "3"), "innodb_flush_log_at_trx_commit is {value}: {lost}",
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the server's option file"},
		{"innodb_doublewrite", is("OFF", "0"), "innodb_doublewrite is off: a crash of the machine while a page is written destroys it",
			"turn it on in the server's option file, unless the file system writes whole pages (ZFS)"},
		{"innodb_flush_method", func(p *patient, v string) bool {
			return is("nosync")(p, v) || is("O_DIRECT_NO_FSYNC")(p, v) && p.product == "MariaDB"
		}, "innodb_flush_method is {value}: {lost}", "remove it from the server's option file, or set O_DIRECT"},
		{"sync_binlog", withBinlog(isNot("1")), "the binary log is on and sync_binlog is {value}: after a crash of the machine replicas and backups made from it lack commits, or have others than the server",
			"SET GLOBAL sync_binlog = 1, and the same in the server's option file"},
		{"binlog_format", withBinlog(is("STATEMENT")), "binlog_format is STATEMENT: receipts cannot be erased or purged (error 1665 at READ COMMITTED), and replicas may apply other rows than the server did",
			"SET GLOBAL binlog_format = 'ROW' (or MIXED), and the same in the server's option file; sessions that are open keep the old one"},
		{"sql_mode", func(p *patient, v string) bool {
			mode := strings.ToUpper(v)
			return !p.isLog && !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES")
		}, "sql_mode is not strict ({value}): a value that does not fit is cut or changed, and counts as delivered",
			"add STRICT_TRANS_TABLES to sql_mode in the server's option file, or sql_mode='…' to the DSN of the application and of the job alike"},
		{"autocommit", isOff, "sessions begin with autocommit off: a write on its own stays open until something ends it", "set autocommit = 1 in the server's option file, or in the DSN"},
		{"sql_log_bin", isOff, "sql_log_bin is off: what is written is not in the binary log: replicas and restored backups lack it", "remove sql_log_bin" + fromDSN},
		{"foreign_key_checks", isOff, "foreign_key_checks is off: rows that refer to nothing are written, and count as delivered", "remove foreign_key_checks" + fromDSN},
		{"unique_checks", isOff, "unique_checks is off: rows that stand there twice may be written, and count as delivered", "remove unique_checks" + fromDSN},
		{"check_constraint_checks", isOff, "check_constraint_checks is off: rows that a CHECK forbids are written, and count as delivered", "remove check_constraint_checks" + fromDSN},
	},
	"postgres": {
		{"fsync", is("off"), "fsync is off: a crash of the machine may destroy the whole database", "set fsync = on in postgresql.conf and reload"},
		{"synchronous_commit", is("off"), "synchronous_commit is off: {lost}", "set synchronous_commit = on in postgresql.conf, or for the account (ALTER ROLE … SET), or in the DSN"},
		{"full_page_writes", is("off"), "full_page_writes is off: a crash of the machine while a page is written destroys it",
			"set full_page_writes = on in postgresql.conf and reload, unless the file system writes whole pages (ZFS)"},
		{"session_replication_role", is("replica"), "session_replication_role is replica: triggers do not fire and foreign keys are not checked, so that what counts as delivered is not what the application writes",
			"remove it from the DSN, or from the account (ALTER ROLE … RESET)"},
	},
	"sqlite": {
		{"journal_mode", is("off", "memory"), "the journal's mode is {value}: a crash in the middle of a write destroys the file", "set _pragma=journal_mode(wal) in the DSN"},
		{"synchronous", is("0"), "synchronous is off: {lost}, or destroys the file", "set _pragma=synchronous(full) in the DSN"},
		{"synchronous", func(p *patient, v string) bool { return v == "1" && p.vars["journal_mode"] == "wal" },
			"synchronous is normal and the journal WAL: {lost}", "set _pragma=synchronous(full) in the DSN"},
		{"busy_timeout", func(p *patient, v string) bool { return v == "0" && !p.isLog }, // the log sets its own
			"busy_timeout is 0: a write fails at once while another connection writes", "set _pragma=busy_timeout(5000) in the DSN"},
		{"locking_mode", is("exclusive"), "locking_mode is exclusive: one process keeps the others out, the job from the application's file or the other way round", "remove it from the DSN"},
	},
}

const (
	writesNowhere = "the account may write to none of the tables there"

	cutsWait   = "a statement that waits for a lock is cut off at once"
	endsTx     = "transactions are ended between their statements"
	closesIdle = "the server closes connections that the pool keeps, and what is sent on one just then stays in doubt"
)

// bounds are the settings that cut something off, and how long they must be at least.
var bounds = map[string][]struct {
	setting string
	least   time.Duration
	means   string
}{
	"mysql": {
		{"max_statement_time", time.Second, cutsWait}, {"wait_timeout", 30 * time.Second, closesIdle},
		{"idle_transaction_timeout", 5 * time.Second, endsTx}, {"idle_write_transaction_timeout", 5 * time.Second, endsTx},
	},
	"postgres": {
		{"statement_timeout", time.Second, cutsWait}, {"idle_session_timeout", 30 * time.Second, closesIdle},
		{"transaction_timeout", 5 * time.Second, endsTx}, {"idle_in_transaction_session_timeout", 5 * time.Second, endsTx},
	},
}

// settings looks at what the tables above say. lockWait is the setting that bounds the wait for
// a lock, and unit that of the server's times.
func (p *patient) settings(lockWait string, unit time.Duration) {
	for _, c := range checks[p.Driver] {
		if v, known := p.vars[c.setting]; known && c.wrong(p, v) {
			p.find(c.setting, strings.NewReplacer("{value}", orNone(v), "{lost}", p.lost()).Replace(c.what), c.remedy)
		}
	}
	lasts := func(setting string) time.Duration { return time.Duration(fraction(p.vars[setting]) * float64(unit)) }
	for _, b := range bounds[p.Driver] {
		p.cutOff(b.setting, lasts(b.setting), b.least, b.means)
	}
	if wait := lasts(lockWait); !p.isLog && wait > 0 && p.x.Job.DeliveryTimeout <= wait {
		p.find("lock-wait", fmt.Sprintf("%s is %v, the job gives a delivery only %v: one that waits for a lock is cut off and stays in doubt instead of getting that error", lockWait, wait, p.x.Job.DeliveryTimeout),
			fmt.Sprintf("set jobConfig.deliveryTimeoutMillis above %d", wait.Milliseconds()))
	}
}
