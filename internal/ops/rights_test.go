package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// grant is one right of the table of rights in docs/table.md.
type grant struct{ account, table, rights string }

// documentedRights gives the rights of an account, one by one. What a database alone needs
// stands behind its name: "SELECT; MySQL: UPDATE".
func documentedRights(t *testing.T, name, driver string) (all []grant) {
	t.Helper()
	page, err := os.ReadFile("../../docs/table.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "## Rights\n")
	section, _, _ = strings.Cut(section, "\n## ")
	names := regexp.MustCompile("`(\\w+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !slices.Contains(strings.Split(strings.TrimSpace(cells[1]), ", "), name) {
			continue
		}
		rights, onMySQL, _ := strings.Cut(strings.TrimSpace(cells[3]), "; MySQL: ")
		if onMySQL != "" && driver == testdb.DriverMySQL {
			rights += ", " + onMySQL
		}
		for _, m := range names.FindAllStringSubmatch(cells[2], -1) {
			for right := range strings.SplitSeq(rights, ", ") {
				all = append(all, grant{name, m[1], right})
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("docs/table.md has no rights of %s", name)
	}
	return all
}

// rightsRig is a log and a target, each in a database of its own, with an account for each
// row of the table of rights.
type rightsRig struct {
	driver    string
	logDB, db testdb.DB
	// pools are the administrator's, by the databases' names.
	pools map[string]*sql.DB
	// log and target are the administrator's.
	log    *txlog.SQLStorage
	target delivery.Target
	// users are the accounts as GRANT names them, by their names in the table.
	users map[string]string
	// writes is how often an account was put to use: values of the application differ.
	writes int
	// lease is the job's.
	lease time.Duration
}

// uses are what the table names accounts for.
var uses = map[string]func(*rightsRig, *useOf){
	"application": (*rightsRig).application, "job": (*rightsRig).job,
	"console read": (*rightsRig).consoleRead, "console operate": (*rightsRig).consoleOperate,
}

func newRightsRig(t *testing.T, driver string) *rightsRig {
	t.Helper()
	r := &rightsRig{driver: driver, logDB: testdb.New(t, driver), db: testdb.New(t, driver), users: map[string]string{}}
	r.pools = map[string]*sql.DB{r.db.Name: r.db.Open(t), r.logDB.Name: r.logDB.Open(t)}
	a := newAmending(t, r.db)
	must(t, a.receipts(t))
	text, err := attempt.TargetSchema(driver)
	must(t, err)
	_, order, _ := strings.Cut(strings.TrimSuffix(text, ";\n"), ";\n\n")
	r.exec(t, r.db, order, "CREATE TABLE orders (id INT PRIMARY KEY)")
	r.target = a.target
	r.log, err = txlog.Open(t.Context(), driver, r.logDB.DSN)
	must(t, err)
	t.Cleanup(func() { _ = r.log.Close() })
	for name := range uses {
		r.account(t, name)
	}
	return r
}

// exec runs texts in one transaction.
func (r *rightsRig) exec(t *testing.T, db testdb.DB, texts ...string) {
	t.Helper()
	tx, err := r.pools[db.Name].BeginTx(t.Context(), nil)
	must(t, err)
	for _, text := range texts {
		_, err := tx.ExecContext(t.Context(), text)
		must(t, err)
	}
	must(t, tx.Commit())
}

// emptied are the texts that empty tables.
func emptied(tables ...string) (texts []string) {
	for _, table := range tables {
		texts = append(texts, "DELETE FROM "+table)
	}
	return texts
}

// account makes one with the documented rights.
func (r *rightsRig) account(t *testing.T, name string) {
	t.Helper()
	user := strings.ReplaceAll(name, " ", "") + r.db.Name[max(0, len(r.db.Name)-18):]
	r.users[name] = user
	if r.driver == testdb.DriverMySQL {
		r.users[name] += "@'%'"
		r.exec(t, r.db, "CREATE USER "+r.users[name]+" IDENTIFIED BY 'x'")
	} else {
		r.exec(t, r.db, "CREATE ROLE "+user+" LOGIN")
	}
	t.Cleanup(func() {
		drop := "DROP USER " + r.users[name]
		if r.driver == testdb.DriverPostgres {
			drop = "DROP ROLE " + user
			for _, pool := range r.pools {
				_, _ = pool.ExecContext(context.Background(), "DROP OWNED BY "+user)
			}
		}
		_, _ = r.pools[r.db.Name].ExecContext(context.Background(), drop)
	})
	for _, g := range documentedRights(t, name, r.driver) {
		r.change(t, "GRANT", g, name)
	}
	if name != "console read" { // the application's own table
		r.change(t, "GRANT", grant{name, "orders", "SELECT, INSERT, UPDATE, DELETE"}, name)
	}
}

// at is the database that holds a table.
func (r *rightsRig) at(table string) testdb.DB {
	if table == "orders" || table == "bed_receipt" || table == "bed_order" {
		return r.db
	}
	return r.logDB
}

// change grants or revokes.
func (r *rightsRig) change(t *testing.T, verb string, g grant, name string) {
	t.Helper()
	db, table := r.at(g.table), g.table
	if r.driver == testdb.DriverMySQL {
		table = db.Name + "." + table
	}
	to := map[string]string{"GRANT": " TO ", "REVOKE": " FROM "}[verb]
	r.exec(t, db, verb+" "+g.rights+" ON "+table+to+r.users[name])
}

// dsn is how an account reaches a database.
func (r *rightsRig) dsn(db testdb.DB, name string) string {
	user, _, _ := strings.Cut(r.users[name], "@")
	if r.driver == testdb.DriverMySQL {
		return strings.Replace(db.DSN, "root@", user+":x@", 1)
	}
	return strings.Replace(db.DSN, "postgres@", user+"@", 1)
}

// useOf is one account put to use.
type useOf struct {
	t      *testing.T
	logger *logrus.Logger
	// storage and target are the account's.
	storage *txlog.SQLStorage
	target  delivery.Target
	// from is a number that no earlier use had, for the table orders.
	from int
	// close is what to close, the last first.
	close []io.Closer
}

// try ends the use with the first failure.
func (u *useOf) try(what string, err error) {
	if err != nil {
		panic(failure{fmt.Errorf("%s: %w", what, err)})
	}
}

func (u *useOf) want(what string, ok bool) {
	if !ok {
		panic(failure{errors.New(what)})
	}
}

type failure struct{ error }

// use puts an account to all the uses that it is documented for. The error is the first
// that fails, or what a log line warns of.
func (r *rightsRig) use(t *testing.T, name string) (err error) {
	t.Helper()
	r.exec(t, r.logDB, emptied("transaction_log", "bed_order_key", "bed_order_queue", "bed_attempt", "bed_activity", "bed_audit", "bed_data_source",
		// A log without identity is given another when it is opened next.
		"bed_log"+map[bool]string{true: " WHERE name <> 'identity'"}[strings.HasPrefix(name, "console")])...)
	r.exec(t, r.db, emptied("bed_receipt", "bed_order")...)
	r.writes++
	logger, hook := logtest.NewNullLogger()
	u := &useOf{t: t, logger: logger, from: 1000 * r.writes}
	defer func() {
		failed := recover()
		for _, c := range slices.Backward(u.close) {
			_ = c.Close()
		}
		if failed != nil {
			err = failed.(failure)
		}
	}()
	u.storage, err = txlog.Open(t.Context(), r.driver, r.dsn(r.logDB, name), txlog.WithoutCreate(), txlog.WithLogger(logger))
	u.try("open the log", err)
	u.close = append(u.close, u.storage)
	u.target, err = targetOf.For(r.driver)(r.dsn(r.db, name))
	must(t, err)
	u.target.DataSource = "target"
	uses[name](r, u)
	for table, err := range logdb.Journal(u.storage).Off() {
		if table != journal.Audit && (name != "application" || table != journal.DataSources) {
			u.try("keep the journal", err)
		}
	}
	for _, e := range hook.AllEntries() {
		u.want(fmt.Sprintf("a log line says %s %v", e.Message, e.Data), e.Level > logrus.WarnLevel)
	}
	return nil
}

// unit is a write that is in the log, owned by the administrator; it may be under an order key.
func (r *rightsRig) unit(t *testing.T, id int, key string) *entry.Unit {
	t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: r.target.Settings, Statements: []entry.Statement{{SQL: fmt.Sprintf("INSERT INTO orders (id) VALUES (%d)", id)}}}
	u.Receipt = attempt.ReceiptID(r.target.Dialect, u.ID)
	if key != "" {
		u.Order = []entry.Order{{Key: entry.OrderPrefix + key}}
	}
	return u
}

// left adds units and gives the first one up; those behind it wait.
func (r *rightsRig) left(t *testing.T, v entry.Verdict, units ...*entry.Unit) {
	t.Helper()
	must(t, r.log.Add(t.Context(), time.Hour, units...))
	must(t, r.log.Release(t.Context(), units[0], v))
}

var parkedWith = entry.Verdict{Park: true, Err: "Error 1205 (HY000): Lock wait timeout exceeded"}

// application writes at once, under keys and in order, and leaves a write to the job.
func (r *rightsRig) application(u *useOf) {
	ctx := u.t.Context()
	connector, err := bedsql.NewConnector(u.target, bedsql.Config{Storage: u.storage, Logger: u.logger, Guarantee: bedsql.ExactlyOnce})
	u.try("make the connector", err)
	app := sql.OpenDB(connector)
	u.close = append(u.close, app)
	write := func(ctx context.Context, id int) {
		_, err := app.ExecContext(ctx, fmt.Sprintf("INSERT INTO orders (id) VALUES (%d)", u.from+id))
		u.try("write", err)
	}
	write(ctx, 1)
	write(bedsql.WithOrderKey(ctx, "k"), 2)
	write(bedsql.WithOrderKey(ctx, "k"), 3)
	for range 2 { // the second time it is a resend
		keyed, _ := bedsql.WithIdempotencyKey(ctx, fmt.Sprint("key", u.from))
		write(keyed, 4)
	}

	left, first, second := r.unit(u.t, u.from+5, ""), r.unit(u.t, u.from+6, "o"), r.unit(u.t, u.from+7, "o")
	u.try("add to the log", u.storage.Add(ctx, time.Hour, left))
	u.try("leave to the job", u.storage.Release(ctx, left, entry.Verdict{Attempts: []journal.Attempt{{At: time.Now(), Origin: "caller", Class: "retryable", Err: "x"}}}))
	u.try("add to the log in order", u.storage.Add(ctx, time.Hour, first))
	u.try("add to the log in order", u.storage.Add(ctx, time.Hour, second))
	u.try("remove the first", u.storage.Remove(ctx, first))
	discarded := r.unit(u.t, u.from+8, "")
	r.left(u.t, parkedWith, discarded)
	must(u.t, r.log.Discard(ctx, discarded.ID))
	state, err := bedsql.Status(ctx, u.storage, discarded.ID)
	u.want(fmt.Sprintf("what was discarded is %v, %v", state, err), state == entry.StateDiscarded)
	for range 2 { // the second time the minute's row is there
		logdb.Journal(u.storage).Tally("target").Count(journal.AtOnce, 1)
		u.try("count", logdb.Journal(u.storage).Flush(ctx))
	}
	u.try("close", app.Close())
	var receipts int
	must(u.t, r.pools[r.db.Name].QueryRowContext(ctx, "SELECT COUNT(*) FROM bed_receipt WHERE fingerprint IS NULL").Scan(&receipts))
	u.want(fmt.Sprintf("%d receipts were not erased", receipts), receipts == 0)
}

// job delivers, in order too, heals an order and purges.
func (r *rightsRig) job(u *useOf) {
	ctx := u.t.Context()
	r.left(u.t, entry.Verdict{}, r.unit(u.t, u.from+1, "o"), r.unit(u.t, u.from+2, "o"))
	clock := sqltext.Flavor.Clock(r.target.Dialect.Flavor)
	r.exec(u.t, r.db,
		"INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES ('gone', '"+entry.NewID()+"', '"+u.storage.Identity()+"', 0, 0, 0, 1), ('kept', '"+entry.NewID()+"', '"+u.storage.Identity()+"', 0, 0, 0, 0)",
		"INSERT INTO bed_order (id, log_id, last, keep_until) VALUES ('order-idle', '"+u.storage.Identity()+"', 1, 0)")
	r.exec(u.t, r.logDB, "INSERT INTO bed_order_key (id, last, head, waiting) VALUES ('order-idle', 1, '', 0)",
		"INSERT INTO bed_data_source (data_source, job, name, paused, per_second, next_slot, reachable, since, last_error, heartbeat, alive_until) VALUES ('target', '', '', 0, 1000, "+clock+" * 1000, 0, 0, NULL, 0, 0)")
	logdb.Journal(u.storage).Tally("target").Count(journal.AtOnce, 1)
	u.try("count", logdb.Journal(u.storage).Flush(ctx))

	job, err := asyncjob.New(u.storage, asyncjob.Targets{"target": u.target}, asyncjob.Config{Logger: u.logger, MaxDeliveryTryDelay: asyncjob.NoDelay, Lease: r.lease, ProbeTimeout: time.Minute})
	u.try("make the job", err)
	u.close = append(u.close, job)
	delivered := 0
	for range 2 {
		report, err := job.RunOnce(ctx)
		u.try("make a round", err)
		delivered += report.Delivered
	}
	u.want(fmt.Sprintf("the job delivered %d", delivered), delivered == 2)
	u.try("end the job", job.Close())
	for what, n := range map[string]struct {
		db   testdb.DB
		from string
	}{
		"receipts": {r.db, "bed_receipt WHERE id = 'gone'"}, "marked receipts": {r.db, "bed_receipt WHERE id = 'kept' AND log_gone = 0"},
		"order numbers": {r.db, "bed_order WHERE id = 'order-idle'"}, "order keys": {r.logDB, "bed_order_key WHERE id = 'order-idle'"},
	} {
		var count int
		must(u.t, r.pools[n.db.Name].QueryRowContext(ctx, "SELECT COUNT(*) FROM "+n.from).Scan(&count))
		u.want(fmt.Sprintf("%d %s are left", count, what), count == 0)
	}
}

// consoleRead looks at all pages, and may do no more.
func (r *rightsRig) consoleRead(u *useOf) {
	ctx := u.t.Context()
	entry := r.unit(u.t, u.from+1, "o")
	r.left(u.t, parkedWith, entry)
	s := u.console()
	u.readAll(s, entry)
	if s.Act(ctx, ops.Retry, entry.ID, ann) == nil {
		u.t.Error("an account that may only read has retried an entry")
	}
}

func (u *useOf) console() *ops.Store {
	u.t.Helper()
	s, err := ops.New(u.storage, ops.Config{Targets: map[string]delivery.Target{"target": u.target}})
	must(u.t, err)
	return s
}

func (u *useOf) readAll(s *ops.Store, entry *entry.Unit) {
	ctx := u.t.Context()
	d, err := s.Entry(ctx, entry.ID)
	u.try("show an entry", err)
	u.want("the verdict is "+d.Verdict+": "+d.VerdictDetail, d.Verdict == string(ops.NotApplied))
	_, err = s.Overview(ctx, ops.OverviewOptions{Hours: 1})
	u.try("show the overview", err)
	_, err = s.Kinds(ctx, ops.Filter{})
	u.try("show kinds", err)
	_, err = s.Audit(ctx, ops.Page{})
	u.try("show the audit", err)
}

// consoleOperate reads, decides, tries and amends.
func (r *rightsRig) consoleOperate(u *useOf) {
	ctx := u.t.Context()
	first, second, third, fourth := r.unit(u.t, u.from+1, "o"), r.unit(u.t, u.from+2, "o"), r.unit(u.t, u.from+3, "o"), r.unit(u.t, u.from+4, "")
	r.left(u.t, parkedWith, first, second, third)
	inDoubt := parkedWith
	inDoubt.InDoubt = true
	r.left(u.t, inDoubt, fourth)
	s := u.console()
	u.readAll(s, first)
	trial, err := s.Try(ctx, fourth.ID, ann)
	u.try("try", err)
	u.want("the trial says "+trial.Error, trial.Error == "")
	_, err = s.Reveal(ctx, fourth.ID, ann)
	u.try("reveal", err)
	_, err = s.Amend(ctx, fourth.ID, ops.Amendment{SQL: fmt.Sprintf("INSERT INTO orders (id) VALUES (%d)", u.from+5)}, ann)
	u.try("amend", err)
	u.try("pause", s.Control(ctx, ops.Pause, "target", 0, ann))
	u.try("resume", s.Control(ctx, ops.Resume, "target", 0, ann))
	for _, action := range []ops.Action{ops.Retry, ops.Park, ops.Skip, ops.Discard} {
		u.try(string(action), s.Act(ctx, action, first.ID, ann))
	}
	u.try("discard one that others wait for", s.Act(ctx, ops.Discard, second.ID, ann))
	u.try("retry one that waits", s.Act(ctx, ops.Retry, third.ID, ann))
}

func eachRightsRig(t *testing.T, f func(t *testing.T, r *rightsRig)) {
	t.Helper()
	t.Parallel()
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, newRightsRig(t, driver))
		})
	}
}

func TestDocumentedRightsSuffice(t *testing.T) {
	eachRightsRig(t, func(t *testing.T, r *rightsRig) {
		r.lease = time.Minute
		for name := range uses {
			if err := r.use(t, name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestDocumentedRightsAreTheLeast(t *testing.T) {
	eachRightsRig(t, func(t *testing.T, r *rightsRig) {
		r.lease = time.Second // what is not granted is tried for so long
		for name := range uses {
			for _, g := range documentedRights(t, name, r.driver) {
				r.change(t, "REVOKE", g, name)
				if r.use(t, name) == nil {
					t.Errorf("%s does all that it is for without %s on %s", name, g.rights, g.table)
				}
				r.change(t, "GRANT", g, name)
			}
		}
	})
}
