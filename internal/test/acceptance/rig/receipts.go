package rig

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// LimitedAccount is the account of WithoutCreate. MySQL 5.6 takes 16 characters.
func LimitedAccount(db testdb.DB) string { return "lim_" + db.Name[max(0, len(db.Name)-12):] }

// WithoutCreate returns the target for an account that may read and write existing tables but
// create none. grant gives it a new table.
func (r *Rig) WithoutCreate() (limited testdb.DB, grant func(table string)) {
	r.T.Helper()
	limited = r.DB
	const password = "limited"
	name := LimitedAccount(limited)
	if r.DB.Driver == testdb.DriverMySQL {
		r.Exec("CREATE USER "+name+" IDENTIFIED BY '"+password+"'", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+limited.Name+".* TO "+name)
		r.T.Cleanup(func() { r.Exec("DROP USER " + name) })
		cfg, err := mysql.ParseDSN(limited.DSN)
		if err != nil {
			r.T.Fatal(err)
		}
		cfg.User, cfg.Passwd = name, password
		limited.DSN = cfg.FormatDSN()
		return limited, func(string) {}
	}
	grant = func(table string) { r.Exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO " + name) }
	r.Exec("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE "+name+" LOGIN PASSWORD '"+password+"'")
	r.T.Cleanup(func() { r.Exec("DROP OWNED BY "+name, "DROP ROLE "+name) })
	grant("account")
	if u, err := url.Parse(limited.DSN); err == nil && u.Host != "" {
		u.User = url.UserPassword(name, password)
		limited.DSN = u.String()
	} else {
		limited.DSN += " user=" + name + " password=" + password
	}
	return limited, grant
}

// WithSetting adds a setting of the session to a DSN.
func WithSetting(db testdb.DB, setting string) string {
	switch {
	case setting == "":
		return db.DSN
	case db.Driver == testdb.DriverPostgres && !strings.Contains(db.DSN, "://"):
		return db.DSN + " " + setting
	case strings.Contains(db.DSN, "?"):
		return db.DSN + "&" + setting
	default:
		return db.DSN + "?" + setting
	}
}

// Applied writes the entry of a process that died between the COMMIT of a write
// and the removal of its entry.
func (r *Rig) Applied(query string) *entry.Unit {
	r.T.Helper()
	params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
	if err != nil {
		r.T.Fatal(err)
	}
	tgt, id := TargetOf(r.T, r.DB), entry.NewID()
	u := &entry.Unit{ID: id, DataSource: tgt.DataSource, Settings: tgt.Settings, Receipt: attempt.ReceiptID(tgt.Dialect, id),
		Statements: []entry.Statement{{SQL: r.Q(query), Params: params}}}
	out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
		if u.Place, err = attempt.ReceiptPlace(r.T.Context(), d, conn, ReceiptsOf(r)); err != nil {
			r.T.Fatal(err)
		}
		if err := r.Storage.Add(r.T.Context(), time.Minute, u); err != nil {
			r.T.Fatal(err)
		}
		return attempt.Replay(r.T.Context(), d, conn, u, ReceiptsOf(r))
	})
	if out.Err != nil {
		r.T.Fatal(out.Err)
	}
	r.ExecLog("UPDATE transaction_log SET lease_until = 1, next_try_time = 1")
	return u
}

// Tables are what a tool for migrations sees.
func (r *Rig) Tables() (names []string) {
	r.T.Helper()
	rows, err := r.Bare.Query(map[string]string{
		testdb.DriverMySQL:    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
		testdb.DriverPostgres: "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
	}[r.DB.Driver])
	if err != nil {
		r.T.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			r.T.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// Commits follows the messages of a proxy and recognizes those that commit a unit with its receipt,
// in each form of a dialect: COMMIT by itself, or one message for everything, as text or prepared.
type Commits struct {
	mu sync.Mutex
	// whole: MySQL's driver has prepared a statement that writes the receipt
	// and commits.
	whole bool
	// receipts are the names of PostgreSQL's prepared statements that write one.
	receipts map[string]bool
}

func CommitsOf(p *testproxy.Proxy) *Commits {
	c := &Commits{receipts: map[string]bool{}}
	p.Count(c.follow) // it is shown every message, before any fault is
	return c
}

const (
	mysqlQuery, mysqlPrepare                    = 0x03, 0x16
	postgresQuery, postgresParse, postgresBound = 'Q', 'P', 'B'
)

// isMySQL tells a packet of MySQL's protocol with that command.
func isMySQL(message []byte, command byte) bool {
	return len(message) > 4 && message[3] == 0 && message[4] == command
}

func (c *Commits) follow(message []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isMySQL(message, mysqlPrepare) {
		c.whole = c.whole || testproxy.Text("INSERT INTO bed_receipt")(message) && testproxy.Commit(message)
	}
	parts(message, func(kind byte, fields [][]byte) {
		if kind == postgresParse && bytes.HasPrefix(fields[1], []byte("INSERT INTO bed_receipt")) {
			c.receipts[string(fields[0])] = true
		}
	})
	return false
}

// parts splits PostgreSQL messages sent together, and passes their first two texts to f.
func parts(message []byte, f func(kind byte, fields [][]byte)) {
	for len(message) >= 5 {
		size := 1 + int(binary.BigEndian.Uint32(message[1:]))
		if size < 5 || size > len(message) {
			return // it is MySQL's
		}
		if fields := bytes.SplitN(message[5:size], []byte{0}, 3); len(fields) == 3 {
			f(message[0], fields)
		}
		message = message[size:]
	}
}

var uuid = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// Match matches a message that, once carried out, has committed.
func (c *Commits) Match(message []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case isMySQL(message, mysqlQuery), message[0] == postgresQuery:
		return testproxy.Text("commit")(message)
	case testproxy.MySQLExecute(message):
		// The first values of a receipt are its own id and the identical id of its unit.
		id := uuid.Find(message)
		return c.whole && id != nil && bytes.Count(message, id) > 1
	}
	receipt, statements := false, 0
	parts(message, func(kind byte, fields [][]byte) {
		if kind == postgresBound { // the portal, then the statement
			statements++
			receipt = receipt || c.receipts[string(fields[1])]
		}
	})
	return receipt && statements > 1
}

// First matches the first message of an attempt to deliver a unit.
func (c *Commits) First(message []byte) bool {
	begin := testproxy.Text("begin")(message) || testproxy.Text("start transaction")(message)
	return begin && !testproxy.Text("read committed")(message) || c.Match(message)
}

// ReceiptTable creates the table of receipts as a DBA would.
func (r *Rig) ReceiptTable() {
	r.T.Helper()
	ddl, err := attempt.ReceiptSchema(r.DB.Driver)
	if err != nil {
		r.T.Fatal(err)
	}
	r.Exec(ddl)
}

// ReceiptsOf says how units of the rig's log are receipted.
func ReceiptsOf(r *Rig) attempt.Receipts {
	return attempt.Receipts{LogIdentity: r.Storage.Identity(), Retention: attempt.DefaultRetention, KeyRetention: attempt.DefaultRetention}
}

// Receipts counts the rows of the target's table of receipts.
func (r *Rig) Receipts() int {
	r.T.Helper()
	return r.Count("SELECT COUNT(*) FROM bed_receipt")
}

// Settle waits until nothing more is sent after calls returned: their entries are
// removed and their receipts erased.
func (r *Rig) Settle() {
	r.T.Helper()
	r.WantNoLog()
	Eventually(r.T, "the receipts were erased after the calls", func() bool { return r.Receipts() == 0 })
}

func (r *Rig) WantReceipts(want int) {
	r.T.Helper()
	if n := r.Receipts(); n != want {
		r.T.Errorf("there are %d receipts, want %d", n, want)
	}
}

// ReceiptsAge makes the receipts as old as if d had passed.
func (r *Rig) ReceiptsAge(d time.Duration) {
	r.T.Helper()
	if _, err := r.Bare.Exec(r.Q("UPDATE bed_receipt SET creation_time = creation_time - ?, keep_until = keep_until - ?"), d.Milliseconds(), d.Milliseconds()); err != nil {
		r.T.Fatal(err)
	}
}

// LogAge makes the entries as old as if d had passed, and their leases with them.
func (r *Rig) LogAge(d time.Duration) {
	r.T.Helper()
	ms := d.Milliseconds()
	r.ExecLog(fmt.Sprintf("UPDATE transaction_log SET creation_time = creation_time - %d, lease_until = lease_until - %d,"+
		" next_try_time = CASE WHEN next_try_time >= %d THEN next_try_time ELSE next_try_time - %d END", ms, ms, int64(entry.WaitsFrom), ms))
}

// Drain runs the job until nothing is left that it can deliver.
func (r *Rig) Drain(job *asyncjob.Job) {
	r.T.Helper()
	Eventually(r.T, "the job has emptied the log", func() bool {
		if _, err := job.RunOnce(context.Background()); err != nil {
			r.T.Fatal(err)
		}
		return r.Left() == 0
	})
}

// EachProxied runs f against the databases that are reached over a network, with
// a proxy between them and all exactly-once writers.
func EachProxied(t *testing.T, f func(t *testing.T, r *Rig, p *testproxy.Proxy, c *Commits), change ...ConfigChange) {
	t.Helper()
	EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := NewBehindProxy(t, db, append([]ConfigChange{ExactlyOnce}, change...)...)
		f(t, r, p, CommitsOf(p))
	})
}
