// Package doctor looks at an installation, its configuration, the transaction log and
// the targets, and says what is wrong and what to do about it. It changes nothing.
package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/asyncjob"
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
			x.find(nameOf(t), "data-source", "it cannot be used: "+t.Problem, "mend it in the configuration")
		case sameFile(t.Target.File, in.Log.Target.File):
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

// open connects. It reports what cannot be reached, and therefore was not looked
// at.
func (p *patient) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.Target.File != "" {
		if _, err := os.Stat(p.Target.File); err != nil { // opening it would make it
			p.x.unseen("%s: %v", p.where, err)
			return
		}
	}
	if p.Target.NoSideConnection {
		p.find("memory", "it is in the memory of one connection: nothing of it is kept", "give it a file")
		return
	}
	p.db = sql.OpenDB(p.Target.Connector)
	conn, err := p.db.Conn(ctx)
	if err == nil {
		err = conn.PingContext(ctx)
	}
	if err != nil {
		p.x.unseen("%s cannot be reached: %v", p.where, err)
		_ = p.db.Close()
		return
	}
	p.conn = conn
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

// rows asks for rows as text.
func (p *patient) rows(ctx context.Context, query string, args ...any) ([][]string, error) {
	rows, err := p.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all [][]string
	for rows.Next() {
		cells := make([]sql.NullString, len(names))
		to := make([]any, len(cells))
		for i := range cells {
			to[i] = &cells[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		row := make([]string, len(cells))
		for i, c := range cells {
			row[i] = c.String
		}
		all = append(all, row)
	}
	return all, rows.Err()
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

func sameFile(a, b string) bool {
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
		return "a crash of the machine loses entries whose callers were told that their writes will arrive"
	}
	return "a crash of the machine loses writes that count as delivered and are in the log no more"
}

func (p *patient) readOnlyMeans() string {
	if p.isLog {
		return "the log takes no entries, so that no write is accepted"
	}
	return "nothing can be delivered there"
}
