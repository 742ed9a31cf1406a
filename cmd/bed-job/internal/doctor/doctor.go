// Package doctor looks at an installation, its configuration, the transaction log and
// the targets, and says what is wrong and what to do about it. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/listener/delivery"
)

// Finding is something that is wrong.
type Finding struct {
	// Where is "the configuration", "the log" or "data source orders".
	Where string `json:"where"`
	// Check names what was looked at, in a word that is stable: "fsync".
	Check string `json:"check"`
	// What is wrong, and Remedy is what to do.
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// Database is one of an installation's.
type Database struct {
	// Name is the data source's; empty for the log.
	Name string
	// Driver is "mysql", "postgres" or "sqlite", and DSN what it takes.
	Driver, DSN string
	Target      delivery.Target
	// Problem is why it cannot be used; empty: it can.
	Problem string
}

// Installation is what is looked at.
type Installation struct {
	Log     Database
	Targets []Database
	Job     asyncjob.Config
	// Now is this machine's clock.
	Now func() time.Time
}

// Report is what was found.
type Report struct {
	Findings []Finding `json:"findings"`
	// Unseen says what could not be looked at, and why.
	Unseen []string `json:"notLookedAt"`
}

// patience bounds the questions to one database.
const patience = 15 * time.Second

// Examine looks at an installation. Databases are asked side by side, the log first.
func Examine(ctx context.Context, in Installation) *Report {
	in.Job = in.Job.WithDefaults()
	x := &examination{Installation: in, report: &Report{Findings: []Finding{}, Unseen: []string{}}}
	x.configuration()
	log := &patient{x: x, Database: in.Log, where: "the log", isLog: true}
	patients := []*patient{log}
	for _, t := range in.Targets {
		switch {
		case t.Problem != "":
			x.find(nameOf(t), "data-source", "it cannot be used: "+t.Problem, "fix it in the configuration")
		case SameFile(t.Target.File, in.Log.Target.File):
			x.find(nameOf(t), "shared-file", "it is the SQLite file of the transaction log: each would wait for the other's lock",
				"give the log a file of its own")
		default:
			patients = append(patients, &patient{x: x, Database: t, where: nameOf(t)})
		}
	}
	var all sync.WaitGroup
	for _, p := range patients {
		all.Go(func() { p.open(ctx) })
	}
	all.Wait()
	seen := slices.DeleteFunc(slices.Clone(patients), func(p *patient) bool { return p.conn == nil })
	defer func() {
		for _, p := range seen {
			p.close()
		}
	}()
	if x.log = log; log.conn != nil { // the others are compared with it
		log.readIdentity(ctx)
		log.look(ctx)
	}
	for _, p := range seen {
		if !p.isLog {
			all.Go(func() { p.look(ctx) })
		}
	}
	all.Wait()
	x.entries(ctx, log)
	x.compare(seen)
	slices.SortStableFunc(x.report.Findings, func(a, b Finding) int { return strings.Compare(rank(a)+a.Check, rank(b)+b.Check) })
	return x.report
}

// rank puts the configuration first, then the log, then the data sources by name.
func rank(f Finding) string {
	switch f.Where {
	case "the configuration":
		return "0"
	case "the log":
		return "1"
	default:
		return "2" + f.Where
	}
}

func nameOf(d Database) string { return "data source " + d.Name }

// examination is one run.
type examination struct {
	Installation
	identity string
	// schemas are those of the data sources' receipts, by the rows of bed_log.
	schemas map[string]string
	log     *patient

	mu     sync.Mutex
	report *Report
}

func (x *examination) find(where, check, what, remedy string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Findings = append(x.report.Findings, Finding{where, check, what, remedy})
}

func (x *examination) unseen(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Unseen = append(x.report.Unseen, fmt.Sprintf(format, args...))
}

// rarely is how long between two rounds is too long.
const rarely = time.Hour

// configuration looks at what the file alone says.
func (x *examination) configuration() {
	const where = "the configuration"
	if len(x.Targets) == 0 {
		x.find(where, "no-targets", "it names no data source to deliver to", "name each in targetDataSource")
	}
	job := x.Job
	for key, retention := range map[string]time.Duration{"receiptRetentionMillis": job.ReceiptRetention, "keyRetentionMillis": job.KeyRetention} {
		if retention < job.Lease {
			x.find(where, "retention", fmt.Sprintf("%s is %v, less than the lease of %v: a receipt could be purged while an attempt that must meet it is on its way", key, retention, job.Lease),
				fmt.Sprintf("set jobConfig.%s to days; the default is 7 days", key))
		}
	}
	if gap := job.LongestPause(x.Now()); gap > rarely {
		x.find(where, "cron", fmt.Sprintf("between two rounds of the job up to %v pass (cron %q): a write that its caller got back as pending waits as long", gap.Round(time.Minute), job.Cron),
			"set jobConfig.cron to seconds or minutes; the default is every 5 s")
	}
	if job.DeliveryTimeout >= job.Lease*20 {
		x.find(where, "lease", fmt.Sprintf("deliveryTimeoutMillis is %v, the lease only %v", job.DeliveryTimeout, job.Lease), "set jobConfig.leaseMillis to a good part of it")
	}
}

// patient is one database while it is looked at.
type patient struct {
	x *examination
	Database
	where string
	isLog bool

	db   *sql.DB
	conn *sql.Conn
	// vars are the server's settings as this session has them.
	vars map[string]string
	// server identifies a server, place a database on it. The nodes of a cluster
	// hold the same; empty if it is not one.
	server, place, cluster string
	// out: it answers nothing but why.
	out bool
	// product is what it calls itself.
	product string
	// ahead is how much its clock is ahead of this machine's.
	ahead time.Duration
	// most is how many connections the account may have; 0: not known.
	most int
}

func (p *patient) find(check, what, remedy string) { p.x.find(p.where, check, what, remedy) }

// open connects, or reports why it cannot.
func (p *patient) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.Target.File != "" {
		if _, err := os.Stat(p.Target.File); err != nil { // opening it would make it
			p.find("unreachable", "the file cannot be used: "+err.Error(), "fix its path in the DSN; bed-job run makes the log's file, the application a target's")
			return
		}
	}
	if p.Target.NoSideConnection {
		p.find("memory", "it is in the memory of one connection: nothing of it is kept", "give it a file")
		return
	}
	hasty := p.hasty()
	p.db = sql.OpenDB(p.Target.Connector)
	if err := p.connect(ctx); err != nil {
		if _ = p.db.Close(); !hasty {
			p.unreachable(err)
		}
	}
}

func (p *patient) connect(ctx context.Context) error {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return err
	}
	if err := conn.PingContext(ctx); err != nil {
		_ = conn.Close()
		return err
	}
	p.conn = conn
	return nil
}

// unreachable reports why no connection could be made.
func (p *patient) unreachable(err error) {
	code, why := dberr.Of(err), p.x.errorOf(err)
	switch {
	case code.Number == 1049 || code.State == "3D000": // ER_BAD_DB_ERROR, invalid_catalog_name
		p.find("database", "the DSN names a database that is not there: "+why, "create it, or fix its name in the DSN")
	case code.Number == 1045 || code.Number == 1698 || code.Denied() || strings.HasPrefix(code.State, "28"): // access denied
		p.find("access", "the server refuses the account: "+why, "fix user and password in the DSN, or have an administrator give the account access")
	default:
		p.find("unreachable", "it cannot be reached: "+why, "start the server, or fix the address in the DSN; look at what is between, and at TLS")
	}
}

// hasty reports that the driver waits for the server less than it may take.
func (p *patient) hasty() (found bool) {
	if p.Driver != "mysql" {
		return false
	}
	_, query, _ := strings.Cut(p.DSN[strings.LastIndexByte(p.DSN, '/')+1:], "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return false
	}
	for _, name := range []string{"readTimeout", "writeTimeout"} {
		d, _ := time.ParseDuration(params.Get(name))
		found = p.cutOff(name, d, time.Second, "the connection is given up while the server is at work, and each such write stays in doubt") || found
	}
	return found
}

// cutOff reports a bound that is too short for what it ends; 0 is none.
func (p *patient) cutOff(name string, is, least time.Duration, means string) bool {
	short := is > 0 && is < least
	if short {
		p.find(name, fmt.Sprintf("%s is %v: %s", name, is, means), fmt.Sprintf("set %s to at least %v in the DSN, or for the account", name, least))
	}
	return short
}

func (p *patient) close() {
	_ = p.conn.Close()
	_ = p.db.Close()
}

// look looks at the database.
func (p *patient) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p.clock(ctx)
	switch p.Driver {
	case "mysql":
		mysqlServer{p}.look(ctx)
	case "postgres":
		postgresServer{p}.look(ctx)
	default:
		sqliteFile{p}.look(ctx)
	}
	if p.out {
		return
	}
	ourTables{p}.look(ctx)
	p.identities(ctx)
}

// text asks for one value; empty if it is NULL, absent or cannot be had.
func (p *patient) text(ctx context.Context, query string, args ...any) string {
	all, err := p.rows(ctx, query, args...)
	if err != nil || len(all) == 0 {
		return ""
	}
	return all[0][0]
}

// QueryContext asks, once more on another connection if the server has closed this one.
func (p *patient) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.conn.QueryContext(ctx, query, args...)
	if err == nil || p.conn.PingContext(ctx) == nil {
		return rows, err
	}
	lost := p.conn
	if p.connect(ctx) != nil {
		return nil, err
	}
	_ = lost.Close()
	return p.conn.QueryContext(ctx, query, args...)
}

// rows asks for rows as text.
func (p *patient) rows(ctx context.Context, query string, args ...any) ([][]string, error) {
	return tables.Texts(ctx, p, query, args...)
}

// readVars reads the settings of the session.
func (p *patient) readVars(ctx context.Context, query string) bool {
	p.vars = map[string]string{}
	rows, err := p.rows(ctx, query)
	if err != nil {
		p.x.unseen("%s: its settings cannot be read: %s", p.where, p.x.errorOf(err))
	}
	for _, r := range rows {
		p.vars[strings.ToLower(r[0])] = r[1]
	}
	return err == nil
}

// grant is the statement that gives the rights on tables.
func (p *patient) grant(ctx context.Context, object string) string {
	who := "the account"
	switch p.Driver {
	case "mysql":
		if user, host, ok := strings.Cut(p.text(ctx, "SELECT CURRENT_USER()"), "@"); ok {
			who = "'" + user + "'@'" + host + "'"
		}
	case "postgres":
		who = cmp.Or(p.text(ctx, "SELECT quote_ident(current_user)"), who)
	}
	return fmt.Sprintf("as an administrator: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s", object, who)
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

// SameFile reports whether two paths lead to one file.
func SameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// The oldest versions that keep a log: docs/compatibility.md has them.
var oldest = map[string][2]int{"MariaDB": {10, 6}, "MySQL": {8, 0}, "PostgreSQL": {9, 5}}

var versionNumber = regexp.MustCompile(`(\d+)\.(\d+)`)

// tooOld tells of a version that is older than these.
func (p *patient) tooOld(version string) {
	m := versionNumber.FindStringSubmatch(version)
	if m == nil {
		return
	}
	least := oldest[p.product]
	if major, minor := number(m[1]), number(m[2]); major < least[0] || major == least[0] && minor < least[1] {
		p.find("version", fmt.Sprintf("%s %s is older than what bed is known to work with", p.product, version),
			fmt.Sprintf("use %s %d.%d or later", p.product, least[0], least[1]))
	}
}

// lost is the effect of a setting that answers a commit before it is on the disk.
func (p *patient) lost() string {
	if p.isLog {
		return "a crash of the machine loses entries of writes that were promised to arrive"
	}
	return "a crash of the machine loses writes that count as delivered and are in the log no more"
}

func (p *patient) readOnlyMeans() string {
	if p.isLog {
		return "the log takes no entries, so that no write is accepted"
	}
	return "nothing can be delivered there"
}
