// Package doctor examines an installation: its configuration, the transaction log and the targets.
// It reports problems and their remedies. It changes nothing.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// Finding is a problem.
type Finding struct {
	// Where is "the configuration", "the log" or "data source orders".
	Where string `json:"where"`
	// Check is the subject, in one stable word: "fsync".
	Check string `json:"check"`
	// What is the problem, Remedy the way to solve it.
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// Database is one of an installation's.
type Database struct {
	// Name is the data source's; empty for the log.
	Name string
	// Named is the data source's name in the DSN itself, if any.
	Named string
	// Driver is "mysql", "postgres" or "sqlite", and DSN its data source name.
	Driver, DSN string
	// Access has its certificates and passwords beside the DSN; nil for none.
	Access *access.Access
	Target delivery.Target
}

// Installation is the subject of an examination.
type Installation struct {
	Log     Database
	Targets []Database
	Job     asyncjob.Config
	// Now is this machine's clock.
	Now func() time.Time
	// Redact removes passwords from reports.
	Redact func(string) string
}

// Report is what was found.
type Report struct {
	Findings []Finding `json:"findings"`
	// Unseen lists the unexamined parts, with reasons.
	Unseen []string `json:"notLookedAt"`
	// Warnings are risks that do not change the exit status.
	Warnings []string `json:"warnings"`
	// Notes are worth knowing, and nothing is wrong.
	Notes []string `json:"notes"`
	// Checked lists the examined parts.
	Checked []string `json:"checked"`
	// AtHome are the targets whose transactions reach the log (bedsql.WithTx).
	AtHome []string `json:"atHome"`
}

// loopback matches names derived from loopback addresses.
var loopback = regexp.MustCompile(`(^|,)(127\.[0-9.]+|localhost|\[?::1\]?):[0-9]+[,/]`)

// patience bounds the questions to one database.
const patience = 15 * time.Second

// Examine looks at an installation: the log, then the targets side by side.
func Examine(ctx context.Context, in Installation) *Report {
	in.Job = in.Job.WithDefaults()
	x := &examination{Installation: in, report: &Report{Findings: []Finding{}, Unseen: []string{}, Notes: []string{}, Warnings: []string{}, AtHome: []string{}, Checked: []string{}}}
	x.configuration()
	in.Log.Target.ReceiptSchema = "" // a log has no receipts
	log := &patient{x: x, Database: in.Log, where: "the log", isLog: true}
	x.log = log
	log.examine(ctx) // the others are compared with it
	patients := []*patient{log}
	var all sync.WaitGroup
	for _, t := range in.Targets {
		p := &patient{x: x, Database: t, where: "data source " + t.Name}
		if target.SameFile(t.Target.File, in.Log.Target.File) {
			p.find("shared-file", "it is the SQLite file of the transaction log: each would wait for the other's lock", "give the log a file of its own")
			continue
		}
		p.findIf(loopback.MatchString(t.Name), "name", "it has a loopback address, which is another database on another machine: the log cannot tell the entries of the two apart",
			"give it a name of its own by bedDataSource in the DSN of the application, and here, once its entries are delivered")
		patients = append(patients, p)
		all.Go(func() { p.examine(ctx) })
	}
	all.Wait()
	seen := slices.DeleteFunc(patients, func(p *patient) bool { return p.db == nil })
	defer func() {
		for _, p := range seen {
			_ = p.db.Close()
		}
	}()
	for _, p := range seen {
		if p.atHome() {
			x.report.AtHome = append(x.report.AtHome, p.Name)
		}
	}
	x.entries(ctx, log)
	x.compare(seen)
	slices.Sort(x.report.Checked)
	slices.Sort(x.report.Warnings)
	slices.SortStableFunc(x.report.Findings, func(a, b Finding) int { return strings.Compare(a.Where+a.Check, b.Where+b.Check) })
	return x.report
}

type examination struct {
	Installation
	log *patient
	// known are the rows of bed_log: its identity, and the schemas of receipts.
	known map[string]string

	mu     sync.Mutex
	report *Report
}

func (x *examination) findIf(wrong bool, where, check, what, remedy string) {
	if !wrong {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Findings = append(x.report.Findings, Finding{where, check, x.Redact(what), x.Redact(remedy)})
}

// add adds a text to a list of the report.
func (x *examination) add(to *[]string, format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	*to = append(*to, x.Redact(fmt.Sprintf(format, args...)))
}

// rarely is how long between two rounds is too long.
const rarely = time.Hour

// configuration examines the file alone.
func (x *examination) configuration() {
	const where = "the configuration"
	job := x.Job
	for key, retention := range map[string]time.Duration{"receiptRetentionMillis": job.ReceiptRetention, "keyRetentionMillis": job.KeyRetention} {
		x.findIf(retention < job.Lease, where, "retention", fmt.Sprintf("%s is %v, less than the lease of %v: a receipt could be purged while an attempt that must meet it is on its way", key, retention, job.Lease),
			fmt.Sprintf("set jobConfig.%s to days; the default is 7 days", key))
	}
	for key, d := range map[string]time.Duration{"leaseMillis": job.Lease, "deliveryTimeoutMillis": job.DeliveryTimeout} {
		x.findIf(d < shortest, where, "too-short", fmt.Sprintf("%s is %v: it is over before a database answers, and entries are taken away from whoever works on them", key, d), "remove it from jobConfig, or set it to seconds")
	}
	for key, d := range map[string]time.Duration{
		"maxDeliveryTryDelayMillis": job.MaxDeliveryTryDelay, "retryDelayMillis": job.RetryDelay, "retryDelayMaxMillis": job.RetryDelayMax, "unknownDataSourceDelayMillis": job.UnknownDataSourceDelay,
		"leaseMillis": job.Lease, "deliveryTimeoutMillis": job.DeliveryTimeout, "probeTimeoutMillis": job.ProbeTimeout,
	} {
		x.findIf(d > longest, where, "too-long", fmt.Sprintf("%s is %v: entries rest as long", key, d.Round(time.Hour)), "remove it from jobConfig, or set it to seconds or minutes; it is in milliseconds")
	}
	for _, t := range x.Targets {
		x.findIf(t.Named != "" && t.Named != t.Name, "data source "+t.Name, "name", fmt.Sprintf("its DSN names it %s (bedDataSource): an application with this DSN writes entries for %[1]s, which are not delivered here", t.Named),
			"make the key in targetDataSource and bedDataSource the same, or remove bedDataSource from the job's DSN")
	}
	x.add(&x.report.Checked, "the configuration: data sources, schedule, delays, leases and retentions")
	gap := job.LongestPause(x.Now())
	x.findIf(gap > rarely, where, "cron", fmt.Sprintf("between two rounds of the job up to %v pass (cron %q): a write that its caller got back as pending waits as long", gap.Round(time.Minute), job.Cron),
		"set jobConfig.cron to seconds or minutes; the default is every 5 s")
}

// least and most are how long times of the configuration may sensibly be.
const (
	shortest = time.Second
	longest  = 24 * time.Hour
)

// patient is one database while it is looked at.
type patient struct {
	x *examination
	Database
	where string
	isLog bool

	// db is nil if the database is unreachable.
	db *sql.DB
	// vars are the server's settings as this session has them.
	vars map[string]string
	// server identifies a server, place a database on it. cluster is the same on all nodes of a
	// cluster, and empty outside of clusters.
	server, place, cluster string
	// out: it answers nothing but why.
	out bool
	// product is the server's name for itself.
	product string
	// ahead is how much its clock is ahead of this machine's.
	ahead time.Duration
	// most is how many connections the account may have; 0: not known.
	most int
}

func (p *patient) find(check, what, remedy string) { p.findIf(true, check, what, remedy) }

func (p *patient) findIf(wrong bool, check, what, remedy string) {
	p.x.findIf(wrong, p.where, check, what, remedy)
}

func (p *patient) examine(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p.open(ctx)
	switch p.Target.Dialect.Flavor {
	case sqltext.Messages:
		lookAtBroker(p)
		return
	case sqltext.Calls:
		lookAtService(p)
		return
	}
	if p.db == nil {
		return
	}
	p.clock(ctx)
	switch p.Driver {
	case "mysql":
		lookAtMySQL(ctx, p)
	case "postgres":
		lookAtPostgres(ctx, p)
	default:
		lookAtSQLite(ctx, p)
	}
	if p.out {
		return
	}
	p.ourTables(ctx)
	p.identities(ctx)
	p.empty(ctx)
	p.account(ctx)
	looked := "connection, clock, settings, tables, keys, indexes, triggers and rights"
	if p.isLog {
		looked += ", identity, entries"
	}
	p.x.add(&p.x.report.Checked, "%s: %s", p.where, looked)
}

// open connects, or reports why it cannot.
func (p *patient) open(ctx context.Context) {
	if p.Target.File != "" {
		if _, err := os.Stat(p.Target.File); err != nil { // opening it would make it
			p.find("unreachable", "the file cannot be used: "+err.Error(), "fix its path in the DSN; bed-job run makes the log's file, the application a target's")
			return
		}
	}
	hasty := false
	if c, err := mysql.ParseDSN(p.DSN); p.Driver == "mysql" && err == nil {
		for name, is := range map[string]time.Duration{"readTimeout": c.ReadTimeout, "writeTimeout": c.WriteTimeout} {
			if is > 0 && is < time.Second {
				p.find(name, fmt.Sprintf("%s is %v: the connection is given up while the server is at work, and each such write stays in doubt", name, is), "set it to at least 1s in the DSN")
				hasty = true
			}
		}
	}
	db := sql.OpenDB(p.Target.Connector)
	if err := db.PingContext(ctx); err != nil {
		if _ = db.Close(); !hasty {
			p.unreachable(err)
		}
		return
	}
	p.db = db
}

// unreachable reports why no connection could be made.
func (p *patient) unreachable(err error) {
	code, why := dberr.Of(err), errorOf(err)
	says := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(err.Error()), text) })
	}
	among := func(numbers ...int) bool { return slices.Contains(numbers, int(code.Number)) }
	var key *access.Error
	switch {
	case errors.As(err, &key):
		p.find("keys", key.Error(), "fix what the key "+key.Key+" of this data source names; each new connection reads it again")
	case among(1049) || code.State == "3D000": // ER_BAD_DB_ERROR, invalid_catalog_name
		p.find("database", "the DSN names a database that is not there: "+why, "create it, or fix its name in the DSN")
	case among(3159) || says("tls:", "tls requested", "tls connection", "tls error", "x509", "certificate", "insecure transport", "no encryption", "ssl off", "ssl is not enabled"):
		p.find("tls", "server and DSN do not agree about encryption: "+why, "give the data source tls, with ca of the server's authority, and with cert and key where it asks for a client's certificate, or set tls=true (MySQL) or sslmode=verify-full (PostgreSQL) in the DSN; turn TLS off where the server has none")
	case among(1820, 1862): // ER_MUST_CHANGE_PASSWORD
		p.find("password", "the account's password has expired: "+why, "have an administrator set a new one (ALTER USER … IDENTIFIED BY …), and give it to the DSN")
	case among(4151, 3118):
		p.find("access", "the account is locked: "+why, "ALTER USER … ACCOUNT UNLOCK")
	case among(1040, 1203, 1226) || code.State == "53300":
		p.find("connections", "the server takes no more connections: "+why, "close what holds them, or raise max_connections or the account's limit")
	case among(1193, 1229, 1231, 1232, 1238, 1064) || slices.Contains([]string{"42704", "22023", "42601", "55P02"}, code.State):
		p.find("dsn-parameter", "the server does not know a parameter of the DSN, or refuses its value: "+why, "fix or remove the parameter; what is no option of the driver is sent to the server as a setting")
	case among(1045, 1698) || code.Denied() || strings.HasPrefix(code.State, "28"): // access denied
		// MariaDB denies access where it requires TLS; PostgreSQL does not tell an expired password from a wrong one.
		also := "set tls=true in the DSN if the server or the account requires TLS"
		if p.Driver == "postgres" {
			also = "an expired password (ALTER ROLE … VALID UNTIL) is refused as a wrong one"
		}
		p.find("access", "the server refuses the account: "+why, "fix user and password (in the DSN, passwordFile or passwordCommand), or have an administrator give the account access; "+also)
	default:
		p.find("unreachable", "it cannot be reached: "+why, "start the server, or fix the address in the DSN; look at what is between, and at TLS")
	}
}

// text returns one value; empty if it is NULL, absent or unavailable.
func (p *patient) text(ctx context.Context, query string, args ...any) string {
	all, err := p.rows(ctx, query, args...)
	if err != nil || len(all) == 0 {
		return ""
	}
	return all[0][0]
}

func (p *patient) rows(ctx context.Context, query string, args ...any) ([][]string, error) {
	return tables.Texts(ctx, p.db, query, args...)
}

// readVars adds the results of a query to the session's settings.
func (p *patient) readVars(ctx context.Context, query string) bool {
	rows, err := p.rows(ctx, query)
	switch {
	case err != nil && dberr.Of(err).Number == 1820: // the session may do nothing else than set a password
		p.out = true
		p.unreachable(err)
	case err != nil:
		p.x.add(&p.x.report.Unseen, "%s: its settings cannot be read: %s", p.where, errorOf(err))
	}
	if p.vars == nil {
		p.vars = map[string]string{}
	}
	for _, r := range rows {
		p.vars[strings.ToLower(r[0])] = r[1]
	}
	return err == nil
}

// clock measures how much the database's clock, as its sessions see it, is ahead of
// this machine's.
func (p *patient) clock(ctx context.Context) {
	before := p.x.Now()
	millis := p.text(ctx, "SELECT "+p.Target.Dialect.Flavor.Clock())
	between := before.Add(p.x.Now().Sub(before) / 2)
	var ms int64
	if _, err := fmt.Sscan(millis, &ms); err == nil {
		p.ahead = time.UnixMilli(ms).Sub(between)
	}
}
