package cli

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// verifying is a log in memory and a harness with targets in its configuration.
type verifying struct {
	*harness
	log *txlog.Memory
}

func newVerifying(t *testing.T, targets string) *verifying {
	t.Helper()
	log := txlog.NewMemory()
	v := &verifying{newHarness(t, log), log}
	v.app.Now = time.Now
	write(t, v.config, targets+"transactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n")
	return v
}

func targetLine(name string, db testdb.DB) string {
	return fmt.Sprintf("  %s: {driver: %s, dsn: %q}\n", name, db.Driver, db.DSN)
}

// add logs a waiting unit with a receipt; change may be nil.
func (v *verifying) add(t *testing.T, dataSource string, change func(*entry.Unit)) *entry.Unit {
	t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: dataSource, Lease: entry.Lease{Token: "t"},
		Statements: []entry.Statement{{SQL: "UPDATE account SET balance = balance - 1"}}}
	u.Receipt = u.ID
	if change != nil {
		change(u)
	}
	if err := v.log.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	if err := v.log.Release(t.Context(), u, entry.Verdict{Park: true}); err != nil {
		t.Fatal(err)
	}
	return u
}

// verdicts runs list --verify and returns the verdict of each id.
func (v *verifying) verdicts(t *testing.T) map[string]unitView {
	t.Helper()
	r := v.run(t, "list", "--verify", "-o", "json")
	var views []unitView
	if err := json.Unmarshal([]byte(r.out), &views); err != nil || r.status != 0 {
		t.Fatalf("status %d, %v\n%s%s", r.status, err, r.out, r.err)
	}
	all := map[string]unitView{}
	for _, view := range views {
		all[view.ID] = view
	}
	return all
}

func bareConn(t *testing.T, target delivery.Target) driver.Conn {
	t.Helper()
	conn, err := target.Connector.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTheVerdictIsWhatTheTargetHolds(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		asked := db
		if db.Driver == testdb.DriverMySQL { // which shows what is not committed, if it is let
			asked.DSN += "&tx_isolation=%27READ-UNCOMMITTED%27"
		}
		v := newVerifying(t, "targetDataSource:\n"+targetLine("target", asked))
		target, err := dataSource{name: "target", driver: db.Driver, dsn: asked.DSN}.target()
		if err != nil {
			t.Fatal(err)
		}
		pool := db.Open(t)
		if _, err := pool.Exec("CREATE TABLE account (balance INT)"); err != nil {
			t.Fatal(err)
		}
		settings := func(u *entry.Unit) { u.Settings = target.Settings }
		never := v.add(t, "target", settings)
		if got := v.verdicts(t)[never.ID]; got.Verdict != ops.NotApplied {
			t.Errorf("without the table bed_receipt the verdict is %q, %s", got.Verdict, got.VerdictDetail)
		}
		conn := bareConn(t, target)
		if err := attempt.EnsureReceipts(t.Context(), target.Dialect, conn, attempt.Receipts{}); err != nil {
			t.Fatal(err)
		}
		receipts := attempt.Receipts{LogIdentity: "log", Retention: time.Hour, KeyRetention: time.Hour}
		applied, voided := v.add(t, "target", settings), v.add(t, "target", settings)
		if out := attempt.Replay(t.Context(), target.Dialect, conn, applied, receipts); !out.Delivered() {
			t.Fatal(out.Err)
		}
		if out := attempt.Void(t.Context(), target.Dialect, conn, voided, receipts); !out.Voided {
			t.Fatal(out.Err)
		}
		flying := v.add(t, "target", settings)
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec("INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('" + flying.ID + "', '" + flying.ID + "', 'log', 0, 0, 0)"); err != nil {
			t.Fatal(err)
		}
		plain := v.add(t, "target", func(u *entry.Unit) { u.Receipt = "" })
		// The receipt is looked up in a session with the entry's settings, if possible.
		elsewhere := v.add(t, "target", func(u *entry.Unit) { u.Settings = "search_path=elsewhere" })
		inSession, whyNot := ops.NotApplied, "not applied: retry applies it once"
		if db.Driver == testdb.DriverMySQL {
			inSession, whyNot = ops.CannotTell, "cannot tell: its receipt cannot be looked for: Error 1193"
		}
		place := v.add(t, "target", func(u *entry.Unit) { u.Settings, u.Place = target.Settings, "elsewhere.too" })
		unknown := v.add(t, "nowhere", nil)
		otherKey := v.add(t, "target", func(u *entry.Unit) { u.Receipt, u.Fingerprint = applied.ID, "another request" })

		got := v.verdicts(t)
		for _, tc := range []struct {
			what   string
			u      *entry.Unit
			want   ops.Verdict
			advice string
		}{
			{"applied", applied, ops.Applied, "already applied: discard is safe, retry only removes the entry"},
			{"void", voided, ops.NeverApplied, "decided never to be applied: discard it, and do the work anew if it is still wanted"},
			{"never tried", never, ops.NotApplied, "not applied: retry applies it once"},
			{"not committed", flying, ops.NotApplied, "not applied: retry applies it once"},
			{"at least once", plain, ops.NotApplied, "not applied: it leaves no receipt in its target; the log knows of no attempt that may have been applied"},
			{"with other settings", elsewhere, inSession, whyNot},
			{"with its receipt elsewhere", place, ops.CannotTell, "cannot tell: its receipt is in the table bed_receipt in elsewhere.too, but"},
			{"for an unknown data source", unknown, ops.NotConfigured, "data source not configured: the configuration's targetDataSource does not have it"},
			{"under a key that another request has", otherKey, ops.CannotTell, "cannot tell: another request was applied under its idempotency key"},
		} {
			if got[tc.u.ID].Verdict != tc.want {
				t.Errorf("%s: the verdict is %q (%s), want %q", tc.what, got[tc.u.ID].Verdict, got[tc.u.ID].VerdictDetail, tc.want)
			}
			r := v.run(t, "show", tc.u.ID)
			if r.status != 0 || !strings.Contains(strings.Join(strings.Fields(r.out), " "), "Verdict: "+tc.advice) {
				t.Errorf("%s: show prints\n%s%s\nwant in it %q", tc.what, r.out, r.err, tc.advice)
			}
		}
		table := v.run(t, "list", "--verify")
		for _, want := range []string{"STATE   VERDICT ", "parked  already applied ", "parked  not applied ", "parked  decided never to be applied ", "parked  cannot tell ", "parked  data source not configured "} {
			if !strings.Contains(table.out, want) {
				t.Errorf("the list is\n%s\nwant in it %q", table.out, want)
			}
		}
		if want := "bed-job: data source nowhere: data source not configured: the configuration's targetDataSource does not have it\n"; strings.Count(table.err, want) != 1 {
			t.Errorf("it says\n%s\nwant once in it %q", table.err, want)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := v.verdicts(t)[flying.ID]; got.Verdict != ops.Applied {
			t.Errorf("after its commit the verdict is %q", got.Verdict)
		}
	})
}

func TestALeasedLogIsNotAppliedYet(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	v := newVerifying(t, "targetDataSource:\n"+targetLine("target", db))
	_ = db.Open(t).Ping() // makes the file
	u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
	u.Receipt = u.ID
	if err := v.log.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	if r := v.run(t, "show", u.ID); r.status != 0 || !strings.Contains(r.out, "not applied: an attempt may be running at this moment") {
		t.Errorf("got %+v", r)
	}
}

// meanwhile is a log whose units are delivered during the questions to the targets.
type meanwhile struct{ txlog.Storage }

func (meanwhile) Missing(_ context.Context, ids []string) ([]string, error) { return ids, nil }

func TestEntryDeliveredMeanwhileIsNotReportedUnapplied(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	v := newVerifying(t, "targetDataSource:\n"+targetLine("target", db))
	_ = db.Open(t).Ping()
	u := v.add(t, "target", nil)
	v.app.Open = func(context.Context, dataSource, bool) (txlog.Storage, error) {
		return meanwhile{unclosed{v.log}}, nil
	}
	if got := v.verdicts(t)[u.ID]; got.Verdict != ops.CannotTell || !strings.Contains(got.VerdictDetail, "delivered or discarded") {
		t.Errorf("got %q, %s", got.Verdict, got.VerdictDetail)
	}
}

// blackHole takes connections and never says a word.
func blackHole(t *testing.T) (addr string, accepted *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int32)
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conns = append(conns, c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String(), accepted
}

func TestHungTargetsAreAskedOnceInParallel(t *testing.T) {
	t.Parallel()
	mysqlHole, mysqlDials := blackHole(t)
	postgresHole, postgresDials := blackHole(t)
	gone := filepath.Join(t.TempDir(), "gone.db")
	sources := map[string]string{
		"refusing": `{driver: mysql, dsn: "root:` + password + `@tcp(127.0.0.1:1)/d"}`,
		"gone":     fmt.Sprintf("{driver: sqlite, dsn: %q}", gone),
	}
	const each = 10 // holes: one after the other they take a minute
	for i := range each {
		sources[fmt.Sprint("mysql_hole_", i)] = `{driver: mysql, dsn: "root:` + password + `@tcp(` + mysqlHole + `)/d"}`
		sources[fmt.Sprint("postgres_hole_", i)] = `{driver: postgres, dsn: "postgres://u:` + password + `@` + postgresHole + `/d?sslmode=disable"}`
	}
	text := "targetDataSource:\n"
	for name, s := range sources {
		text += "  " + name + ": " + s + "\n"
	}
	v := newVerifying(t, text)
	var ids []string
	for range 4 {
		for name := range sources {
			ids = append(ids, v.add(t, name, nil).ID)
		}
	}
	began := time.Now()
	got := v.verdicts(t)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, id := range ids {
		if got[id].Verdict != ops.Unreachable || got[id].VerdictDetail == "" || strings.Contains(got[id].VerdictDetail, password) {
			t.Errorf("the verdict on %s is %q, %s", got[id].DataSource, got[id].Verdict, got[id].VerdictDetail)
		}
	}
	if m, p := mysqlDials.Load(), postgresDials.Load(); m != each || p != each {
		t.Errorf("%d silent targets of each kind were dialled %d and %d times", each, m, p)
	}
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("looking at the target created its file: %v", err)
	}
	if r := v.run(t, "show", ids[0]); r.status != 0 || !strings.Contains(r.out, "Verdict:      target unreachable: ") || strings.Contains(r.out, password) {
		t.Errorf("got %+v", r)
	}
}

func TestALockedTargetHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	// In SQLite's default journal mode a committing writer locks readers out.
	file := filepath.Join(t.TempDir(), "target.db")
	pool, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	pool.SetMaxOpenConns(1)
	for _, q := range []string{"CREATE TABLE a (id INT)", "BEGIN EXCLUSIVE"} {
		if _, err := pool.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	v := newVerifying(t, fmt.Sprintf("targetDataSource:\n  target: {driver: sqlite, dsn: \"file:%s?_pragma=busy_timeout(60000)\"}\n", file))
	u := v.add(t, "target", nil)
	began := time.Now()
	got := v.verdicts(t)[u.ID]
	if took := time.Since(began); took > 30*time.Second || got.Verdict != ops.Unreachable {
		t.Errorf("after %v the verdict is %q, %s", took, got.Verdict, got.VerdictDetail)
	}
	if _, err := pool.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
}

func TestTargetProblemDoesNotFailShow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, targets, want string }{
		{"no section", "", "the configuration's targetDataSource does not have it"},
		{"an unset variable", "targetDataSource:\n  target: {driver: mysql, dsn: \"root:" + password + "@${HOST}/d\"}\n", "the environment variable HOST is not set"},
		{"no mapping", "targetDataSource: " + password + "\n", "mapping is expected"},
		{"an unknown driver", "targetDataSource:\n  target: {driver: oracle, dsn: x}\n", "unknown driver"},
		{"a bad DSN", "targetDataSource:\n  target: {driver: mysql, dsn: \"root:" + password + "@tcp(h\"}\n", `data source "target"`},
		{"in memory", "targetDataSource:\n  target: {driver: sqlite, dsn: \":memory:\"}\n", "in the memory of another process"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVerifying(t, tc.targets)
			u := v.add(t, "target", nil)
			for _, args := range [][]string{{"show", u.ID}, {"list", "--verify"}} {
				r := v.run(t, args...)
				if r.status != 0 || !strings.Contains(r.out+r.err, tc.want) || strings.Contains(r.out+r.err, password) {
					t.Errorf("%v: %+v, want %q", args, r, tc.want)
				}
			}
			if r := v.run(t, "list"); r.status != 0 || r.err != "" || strings.Contains(r.out, "VERDICT") {
				t.Errorf("without --verify: %+v", r)
			}
		})
	}
}

func TestRetryDoesNotPromiseUnreplayableEntries(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	v := newVerifying(t, "targetDataSource:\n"+targetLine("target", db))
	_ = db.Open(t).Ping()
	u := v.add(t, "target", func(u *entry.Unit) { u.NotReplayable = "it read before it wrote" })
	if r := v.run(t, "show", u.ID); !strings.Contains(r.out, "not applied: retry decides that it never will be") {
		t.Errorf("got %+v", r)
	}
}
