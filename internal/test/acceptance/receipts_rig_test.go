package acceptance

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// commits follows the messages of a proxy and recognizes those that commit a unit with its receipt,
// in each form of a dialect: COMMIT by itself, or one message for everything, as text or prepared.
type commits struct {
	mu sync.Mutex
	// whole: MySQL's driver has prepared a statement that writes the receipt
	// and commits.
	whole bool
	// receipts are the names of PostgreSQL's prepared statements that write one.
	receipts map[string]bool
}

func commitsOf(p *testproxy.Proxy) *commits {
	c := &commits{receipts: map[string]bool{}}
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

func (c *commits) follow(message []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isMySQL(message, mysqlPrepare) {
		c.whole = c.whole || testproxy.Text("INSERT INTO bed_receipt")(message) && testproxy.Text("COMMIT")(message)
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

// match matches a message that, once carried out, has committed.
func (c *commits) match(message []byte) bool {
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

// first matches the first message of an attempt to deliver a unit.
func (c *commits) first(message []byte) bool {
	begin := testproxy.Text("begin")(message) || testproxy.Text("start transaction")(message)
	return begin && !testproxy.Text("read committed")(message) || c.match(message)
}

// receiptTable creates the table of receipts as a DBA would.
func (r *rig) receiptTable() {
	r.t.Helper()
	ddl, err := attempt.ReceiptSchema(r.db.Driver)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(ddl)
}

// receiptsOf says how units of the rig's log are receipted.
func receiptsOf(r *rig) attempt.Receipts {
	return attempt.Receipts{LogIdentity: r.storage.Identity(), Retention: attempt.DefaultRetention, KeyRetention: attempt.DefaultRetention}
}

// receipts counts the rows of the target's table of receipts.
func (r *rig) receipts() int {
	r.t.Helper()
	return r.count("SELECT COUNT(*) FROM bed_receipt")
}

// settle waits until nothing more is sent after calls returned: their entries are
// removed and their receipts erased.
func (r *rig) settle() {
	r.t.Helper()
	r.wantNoLog()
	eventually(r.t, "the receipts were erased after the calls", func() bool { return r.receipts() == 0 })
}

func (r *rig) wantReceipts(want int) {
	r.t.Helper()
	if n := r.receipts(); n != want {
		r.t.Errorf("there are %d receipts, want %d", n, want)
	}
}

// receiptsAge makes the receipts as old as if d had passed.
func (r *rig) receiptsAge(d time.Duration) {
	r.t.Helper()
	if _, err := r.bare.Exec(r.q("UPDATE bed_receipt SET creation_time = creation_time - ?, keep_until = keep_until - ?"), d.Milliseconds(), d.Milliseconds()); err != nil {
		r.t.Fatal(err)
	}
}

// logAge makes the entries as old as if d had passed, and their leases with them.
func (r *rig) logAge(d time.Duration) {
	r.t.Helper()
	ms := d.Milliseconds()
	r.execLog(fmt.Sprintf("UPDATE transaction_log SET creation_time = creation_time - %d, lease_until = lease_until - %d,"+
		" next_try_time = CASE WHEN next_try_time >= %d THEN next_try_time ELSE next_try_time - %d END", ms, ms, int64(txlog.WaitsFrom), ms))
}

// drain runs the job until nothing is left that it can deliver.
func (r *rig) drain(job *asyncjob.Job) {
	r.t.Helper()
	eventually(r.t, "the job has emptied the log", func() bool {
		if _, err := job.RunOnce(context.Background()); err != nil {
			r.t.Fatal(err)
		}
		return r.left() == 0
	})
}

// eachProxied runs f against the databases that are reached over a network, with
// a proxy between them and all exactly-once writers.
func eachProxied(t *testing.T, f func(t *testing.T, r *rig, p *testproxy.Proxy, c *commits), change ...configChange) {
	t.Helper()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, append([]configChange{exactlyOnce}, change...)...)
		f(t, r, p, commitsOf(p))
	})
}
