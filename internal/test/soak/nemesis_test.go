package soak

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// nemesis breaks a world, one fault after the other, and repairs it again.
// It belongs to the test's goroutine, as servers and proxies do.
type nemesis struct {
	*world
	rng    *rand.Rand
	counts map[string]int
	// ends are the pending ends of faults.
	ends []ending
	// busy are the databases and processes reserved by a fault.
	busy map[any]bool
	// rules are the faults waiting for a message.
	rules []rule
	// healed lets them take any message.
	healed atomic.Bool
}

type ending struct {
	at  time.Time
	end func()
}

type rule struct {
	name   string
	struck <-chan struct{}
}

// fault begins if it can, and returns the time until its end.
type fault struct {
	name   string
	weight int
	// private: it needs a server of its own.
	private bool
	begin   func(n *nemesis) (lasts time.Duration, end func(), ok bool)
}

var faults = []fault{
	{"kill -9 of an application", 8, false, func(n *nemesis) (time.Duration, func(), bool) { return n.killProcess(n.apps[:], n.startApp) }},
	{"kill -9 of a job", 5, false, func(n *nemesis) (time.Duration, func(), bool) { return n.killProcess(n.jobs[:], n.startJob) }},
	{"stop and continue of an application", 5, false, func(n *nemesis) (time.Duration, func(), bool) { return n.stopProcess(n.apps[:]) }},
	{"stop and continue of a job", 5, false, func(n *nemesis) (time.Duration, func(), bool) { return n.stopProcess(n.jobs[:]) }},
	{"cut after the request", 25, false, func(n *nemesis) (time.Duration, func(), bool) {
		return n.atMessage("cut after the request", (*testproxy.Proxy).CutAfter)
	}},
	{"cut before the request", 10, false, func(n *nemesis) (time.Duration, func(), bool) {
		return n.atMessage("cut before the request", (*testproxy.Proxy).CutBefore)
	}},
	{"cut during the request", 12, false, func(n *nemesis) (time.Duration, func(), bool) {
		return n.atMessage("cut during the request", (*testproxy.Proxy).CutInFlight)
	}},
	{"silence after the request", 8, false, func(n *nemesis) (time.Duration, func(), bool) {
		return n.atMessage("silence after the request", (*testproxy.Proxy).Mute)
	}},
	{"request held back", 10, false, (*nemesis).holdMessage},
	{"cut of all connections", 5, false, (*nemesis).cutAll},
	{"connections refused", 5, false, (*nemesis).refuse},
	{"delay", 5, false, (*nemesis).delay},
	{"black hole", 4, false, (*nemesis).blackHole},
	{"kill of sessions", 7, false, (*nemesis).killSessions},
	{"kill of queries", 4, false, (*nemesis).killQueries},
	{"row locks", 6, false, (*nemesis).lockRows},
	{"lock of the log", 4, false, (*nemesis).lockLog},
	{"kill -9 of a server", 2, true, func(n *nemesis) (time.Duration, func(), bool) { return n.endServer((*testdb.Server).Kill) }},
	{"restart of a server", 2, true, func(n *nemesis) (time.Duration, func(), bool) { return n.endServer((*testdb.Server).Stop) }},
	{"pause of a server", 4, true, (*nemesis).pauseServer},
	{"read-only target", 3, true, (*nemesis).readOnly},
	{"next release of an application", 4, false, func(n *nemesis) (time.Duration, func(), bool) { return n.deploy(n.apps[:], n.startApp) }},
	{"next release of a job", 3, false, func(n *nemesis) (time.Duration, func(), bool) { return n.deploy(n.jobs[:], n.startJob) }},
	{"clock of the log's server set", 8, true, (*nemesis).clockOf},
	{"full disk under the log", 8, true, (*nemesis).fillDisk},
}

// uncounted are the faults after which a job counts no try. A fault that breaks a delivery's
// connection, or cancels the delivery, does count.
var uncounted = map[string]bool{
	"kill -9 of an application": true, "kill -9 of a job": true, "row locks": true, "lock of the log": true,
	"next release of an application": true, "next release of a job": true,
}

// makes reports whether a fault belongs to this run.
func (n *nemesis) makes(f fault) bool {
	return (!f.private || n.o.private) && (!n.o.serializable || uncounted[f.name])
}

// rage makes faults until its time has passed, and then repairs all.
func (n *nemesis) rage(until time.Time) {
	var sum int
	for _, f := range faults {
		if n.makes(f) {
			sum += f.weight
		}
	}
	for time.Now().Before(until) {
		time.Sleep(n.o.between/2 + time.Duration(n.rng.Int64N(int64(n.o.between))))
		n.end(time.Now())
		at := n.rng.IntN(sum)
		for _, f := range faults {
			if !n.makes(f) {
				continue
			}
			if at -= f.weight; at >= 0 {
				continue
			}
			if lasts, end, ok := f.begin(n); ok {
				n.counts[f.name]++
				n.trace(f.name)
				if end != nil {
					n.ends = append(n.ends, ending{time.Now().Add(lasts), end})
				}
			}
			break
		}
	}
	n.end(time.Now().Add(time.Hour))
}

// end ends the faults whose time has passed.
func (n *nemesis) end(now time.Time) {
	n.ends = slices.DeleteFunc(n.ends, func(e ending) bool {
		if e.at.After(now) {
			return false
		}
		e.end()
		return true
	})
}

// settle counts the rules that struck. It lets the others strike harmless messages.
func (n *nemesis) settle() {
	struck := func(r rule) bool {
		select {
		case <-r.struck:
			return true
		default:
			return false
		}
	}
	for _, r := range n.rules {
		if struck(r) {
			n.counts[r.name]++
		}
	}
	n.healed.Store(true)
	for _, d := range n.servers() {
		for i := range d.proxies {
			pool, err := sql.Open(d.db.SQLDriver(), n.dsn(d, i))
			if err != nil {
				n.t.Fatal(err)
			}
			for range slices.DeleteFunc(slices.Clone(n.rules), struck) {
				ctx, cancel := context.WithTimeout(n.t.Context(), 200*time.Millisecond)
				_ = pool.PingContext(ctx)
				cancel()
			}
			_ = pool.Close()
		}
	}
}

// some lasts for up to most.
func (n *nemesis) some(least, most time.Duration) time.Duration {
	return least + time.Duration(n.rng.Int64N(int64(most-least)))
}

// take reserves a free thing until back is called.
func (n *nemesis) take(what any) (back func(), ok bool) {
	if n.busy[what] {
		return nil, false
	}
	n.busy[what] = true
	return func() { delete(n.busy, what) }, true
}

// The first of each kind of process is not killed: it lives as long as the run, and shows leaks.
func (n *nemesis) killProcess(of []*process, start func(int)) (time.Duration, func(), bool) {
	i := 1 + n.rng.IntN(len(of)-1)
	p := of[i]
	if n.busy[p] {
		return 0, nil, false
	}
	p.kill()
	lasts := n.some(0, n.o.longest/2)
	n.busy[p] = true
	return lasts, func() { start(i) }, true
}

func (n *nemesis) stopProcess(of []*process) (time.Duration, func(), bool) {
	p := of[n.rng.IntN(len(of))]
	back, ok := n.take(p)
	if !ok {
		return 0, nil, false
	}
	p.signal(syscall.SIGSTOP)
	return n.some(n.o.lease/2, n.o.longest), func() { p.signal(syscall.SIGCONT); back() }, true
}

// servers are the databases with a proxy before them, targets more often than the log.
func (n *nemesis) servers() []*database {
	all := []*database{n.targets[bankM], n.targets[bankP]}
	if n.log.proxies != nil {
		all = append(all, n.log)
	}
	return all
}

func (n *nemesis) proxy() *testproxy.Proxy {
	all := n.servers()
	d := all[n.rng.IntN(len(all))]
	return d.proxies[n.rng.IntN(3)/2] // the application's more often
}

// message returns a random condition on messages.
func (n *nemesis) message() func([]byte) bool {
	match := []func([]byte) bool{
		testproxy.Commit, testproxy.Text("bed_receipt"), testproxy.Text("UPDATE account"), testproxy.Text("INSERT"),
		testproxy.Text("transaction_log"), testproxy.MySQLExecute, testproxy.PostgresExecute,
	}[n.rng.IntN(7)]
	return func(message []byte) bool { return n.healed.Load() || match(message) }
}

func (n *nemesis) atMessage(name string, do func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}) (time.Duration, func(), bool) {
	for range 1 + n.rng.IntN(3) {
		n.rules = append(n.rules, rule{name, do(n.proxy(), n.message())})
	}
	return 0, nil, false // counted when it strikes
}

func (n *nemesis) holdMessage() (time.Duration, func(), bool) {
	reached, release := n.proxy().Hold(n.message())
	n.rules = append(n.rules, rule{"request held back", reached})
	n.ends = append(n.ends, ending{time.Now().Add(n.some(0, n.o.longest)), release})
	return 0, nil, false
}

func (n *nemesis) cutAll() (time.Duration, func(), bool) {
	n.proxy().CutAll()
	return 0, nil, true
}

func (n *nemesis) refuse() (time.Duration, func(), bool) {
	p := n.proxy()
	back, ok := n.take(p)
	if !ok {
		return 0, nil, false
	}
	p.Refuse()
	if n.rng.IntN(2) == 0 {
		p.CutAll()
	}
	return n.some(0, n.o.longest), func() { p.Accept(); back() }, true
}

func (n *nemesis) delay() (time.Duration, func(), bool) {
	return n.slow(n.some(0, 200*time.Millisecond), n.some(0, 200*time.Millisecond))
}

func (n *nemesis) blackHole() (time.Duration, func(), bool) {
	if n.rng.IntN(2) == 0 {
		return n.slow(n.o.longest, 0)
	}
	return n.slow(0, n.o.longest)
}

func (n *nemesis) slow(toServer, toClient time.Duration) (time.Duration, func(), bool) {
	p := n.proxy()
	back, ok := n.take(p)
	if !ok {
		return 0, nil, false
	}
	p.Delay(toServer, toClient)
	return n.some(0, n.o.longest), func() { p.Delay(0, 0); back() }, true
}

func (n *nemesis) killSessions() (time.Duration, func(), bool) {
	return n.kill("KILL ", "pg_terminate_backend")
}

func (n *nemesis) killQueries() (time.Duration, func(), bool) {
	return n.kill("KILL QUERY ", "pg_cancel_backend")
}

// kill ends some sessions of a database. Errors are expected from servers with another fault.
func (n *nemesis) kill(mysql, postgres string) (time.Duration, func(), bool) {
	all := n.servers()
	d := all[n.rng.IntN(len(all))]
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
	defer cancel()
	if d.db.Driver == testdb.DriverPostgres {
		_, err := d.direct.ExecContext(ctx, "SELECT "+postgres+"(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5")
		return 0, nil, err == nil
	}
	rows, err := d.direct.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND RAND() < 0.5")
	if err != nil {
		return 0, nil, false
	}
	var ids []int64
	for rows.Next() {
		var id int64
		if rows.Scan(&id) == nil {
			ids = append(ids, id)
		}
	}
	_ = rows.Close()
	for _, id := range ids {
		_, _ = d.direct.ExecContext(ctx, fmt.Sprint(mysql, id))
	}
	return 0, nil, rows.Err() == nil
}

func (n *nemesis) lockRows() (time.Duration, func(), bool) {
	return n.lock(n.servers()[n.rng.IntN(2)], fmt.Sprintf("SELECT id FROM account WHERE id > %d FOR UPDATE", n.rng.IntN(accounts)))
}

func (n *nemesis) lockLog() (time.Duration, func(), bool) {
	if n.log.db.Driver == testdb.DriverSQLite {
		return n.lock(n.log, "UPDATE bed_log SET value = value")
	}
	return n.lock(n.log, "SELECT id FROM transaction_log ORDER BY id LIMIT 20 FOR UPDATE")
}

// lock holds the locks of a statement in a transaction without changes.
func (n *nemesis) lock(d *database, statement string) (time.Duration, func(), bool) {
	if d.server != nil && n.busy[d.server] {
		return 0, nil, false
	}
	ctx, release := context.WithCancel(n.t.Context())
	patience := time.AfterFunc(time.Second, release)
	tx, err := d.direct.BeginTx(ctx, nil)
	if err == nil {
		_, err = tx.ExecContext(ctx, statement)
	}
	if err != nil || !patience.Stop() {
		release()
		return 0, nil, false
	}
	return n.some(0, n.o.longest), release, true
}

// server takes a private one for a fault of its own.
func (n *nemesis) server() (d *database, back func(), ok bool) {
	all := n.servers()
	d = all[n.rng.IntN(len(all))]
	if d.server == nil {
		return nil, nil, false
	}
	back, ok = n.take(d.server)
	return d, back, ok
}

func (n *nemesis) endServer(how func(*testdb.Server)) (time.Duration, func(), bool) {
	d, back, ok := n.server()
	if !ok {
		return 0, nil, false
	}
	how(d.server)
	return n.some(0, n.o.longest), func() { d.server.Start(); back() }, true
}

func (n *nemesis) pauseServer() (time.Duration, func(), bool) {
	d, back, ok := n.server()
	if !ok {
		return 0, nil, false
	}
	d.server.Pause()
	return n.some(0, n.o.longest), func() { d.server.Resume(); back() }, true
}

// readOnly turns a server read-only, like a failed failover.
func (n *nemesis) readOnly() (time.Duration, func(), bool) {
	d, back, ok := n.server()
	if !ok {
		return 0, nil, false
	}
	off := func() {
		for err := d.setReadOnly(n.t.Context(), false); err != nil; err = d.setReadOnly(n.t.Context(), false) {
			n.t.Logf("%s stays read-only: %v", d.name, err)
		}
		back()
	}
	if err := d.setReadOnly(n.t.Context(), true); err != nil {
		off()
		return 0, nil, false
	}
	return n.some(0, n.o.longest), off, true
}

func (d *database) setReadOnly(ctx context.Context, on bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	statements := []string{fmt.Sprintf("SET GLOBAL read_only = %t", on)}
	if d.db.Driver == testdb.DriverPostgres {
		statements = []string{
			"SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
			fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = %t", d.db.Name, on),
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
		}
	}
	conn, err := d.direct.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (n *nemesis) trace(name string) {
	if n.o.trace != nil {
		fmt.Fprintf(n.o.trace, "%8.3f %s\n", time.Since(n.start).Seconds(), name)
	}
}
