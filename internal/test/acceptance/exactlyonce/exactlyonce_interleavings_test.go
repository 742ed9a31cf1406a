package exactlyonce

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
)

// This test runs the real wrapper, log and job on SQLite, and takes from them
// only the say over when a message to the target arrives, whether its answer
// comes back, and how time passes.

// written is one write of a writer, into a row of its own.
type written struct {
	id   int
	kind string
	// answered: the writer got err.
	answered bool
	err      error
	unit     string
	// removed is when its log was found gone.
	removed   time.Duration
	gone      bool
	discarded bool
}

func (w *written) sql() string { return fmt.Sprintf("UPDATE effect SET n = n + 1 WHERE id = %d", w.id) }

// world is the actors' databases and the knowledge about them.
type world struct {
	t       *rapid.T
	r       *rig.Rig
	pools   []*sql.DB
	jobs    []*asyncjob.Job
	now     time.Duration
	running map[string]*rig.Actor
	writes  []*written
	// byJob are the units delivered by jobs, in all runs.
	byJob *sync.Map
}

// Between its messages nothing takes long: these only have to be longer.
const (
	worldLease  = time.Hour
	retryWithin = 50 * time.Millisecond
)

// newWorld makes the state shared by all runs of the test.
func newWorld(t *testing.T) *world {
	db, logDB := testdb.SQLite(t), testdb.SQLite(t)
	// This test needs no crash safety.
	db.DSN += "&_pragma=synchronous(OFF)"
	logDB.DSN += "&_pragma=synchronous(OFF)"
	r := rig.NewWithLog(t, db, logDB, rig.ExactlyOnce)
	r.ReceiptTable()
	r.Exec("CREATE TABLE effect (id INTEGER PRIMARY KEY, n INT NOT NULL)")
	// An actor learns of a lock at once: its holder stands still.
	tgt, err := rig.Target(db.Driver)(strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(0)", 1))
	if err != nil {
		t.Fatal(err)
	}
	byJob := new(sync.Map)
	w := &world{r: r, byJob: byJob}
	bus := listener.NewBus(rig.Quiet())
	sub := bus.Subscribe(func(ev listener.Event) {
		if ev.Type == listener.ExecuteSuccess {
			byJob.Store(ev.ID, true)
		}
	})
	t.Cleanup(sub.Close)
	for _, logging := range everyLogging {
		for _, tries := range []int{0, 1} {
			cfg := bedsql.Config{
				Storage: r.Storage, Guarantee: bedsql.ExactlyOnce, Logging: logging, Logger: rig.Quiet(), Lease: worldLease,
				SyncMaxDeliveryTryTimes: tries, NoSyncRetry: tries == 0,
				RetryInitial: time.Millisecond, RetryMax: time.Millisecond, RetryTimeout: retryWithin,
			}
			c, err := bedsql.NewConnector(delivery.Target{Connector: rig.HeldConnector{Connector: tgt.Connector}, DataSource: tgt.DataSource, Dialect: tgt.Dialect, Settings: tgt.Settings}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			pool := sql.OpenDB(c)
			t.Cleanup(func() { _ = pool.Close() })
			w.pools = append(w.pools, pool)
		}
	}
	tgt.Connector = rig.HeldConnector{Connector: tgt.Connector}
	for range 2 {
		w.jobs = append(w.jobs, r.JobFor(asyncjob.Targets{tgt.DataSource: tgt}, func(c *asyncjob.Config) {
			c.Lease, c.PurgeInterval, c.Bus = worldLease, time.Nanosecond, bus
		}))
	}
	return w
}

// run is one run of the test, from nothing.
func (w *world) run(t *rapid.T) {
	*w = world{r: w.r, pools: w.pools, jobs: w.jobs, byJob: w.byJob, t: t, running: map[string]*rig.Actor{}}
	w.r.Exec("DELETE FROM effect", "DELETE FROM bed_receipt")
	w.r.ExecLog("DELETE FROM transaction_log")
	defer w.finish()
	t.Repeat(map[string]func(*rapid.T){
		"write":    w.write,
		"job":      w.job,
		"message":  w.message,
		"run":      w.runOn,
		"time":     w.time,
		"operator": w.operator,
		"":         w.check,
	})
	w.quiesce()
}

// finish lets all actors end.
func (w *world) finish() {
	for len(w.running) > 0 {
		for name, a := range w.running {
			if a.At != "" {
				a.Step(rig.Arrives)
			}
			if a.At == "" {
				delete(w.running, name)
			}
		}
	}
}

func (w *world) begin(name string, f func(context.Context)) {
	a := rig.StartActor(name, f)
	a.Since = w.now
	if a.At != "" {
		w.running[name] = a
	}
}

// writers are the ways to write.
var writers = map[string]func(ctx context.Context, pool *sql.DB, statement string) error{
	"write": func(ctx context.Context, pool *sql.DB, statement string) error {
		_, err := pool.ExecContext(ctx, statement)
		return err
	},
	"local transaction": func(ctx context.Context, pool *sql.DB, statement string) error {
		return inTx(ctx, pool, "", statement)
	},
	"local transaction that read": func(ctx context.Context, pool *sql.DB, statement string) error {
		return inTx(ctx, pool, "SELECT n FROM effect LIMIT 1", statement)
	},
	"staged write": func(ctx context.Context, pool *sql.DB, statement string) error {
		ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		_, err = pool.ExecContext(ctx, statement)
		return errors.Join(err, soft.End(ctx))
	},
}

func inTx(ctx context.Context, pool *sql.DB, read, statement string) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if read != "" {
		var n int
		if err := tx.QueryRowContext(ctx, read).Scan(&n); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		return err
	}
	return tx.Commit()
}

func (w *world) write(t *rapid.T) {
	if len(w.running) > 3 || w.locked() {
		t.Skip()
	}
	kinds := []string{"write", "local transaction", "local transaction that read", "staged write"}
	one := &written{id: len(w.writes) + 1, kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	pool := rapid.SampledFrom(w.pools).Draw(t, "pool")
	w.r.Exec(fmt.Sprintf("INSERT INTO effect VALUES (%d, 0)", one.id))
	w.writes = append(w.writes, one)
	w.begin(fmt.Sprintf("writer %d", one.id), func(ctx context.Context) {
		one.err = writers[one.kind](ctx, pool, one.sql())
		one.answered = true
	})
}

func (w *world) job(t *rapid.T) {
	n := rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job")
	name := fmt.Sprintf("job %d", n)
	if w.running[name] != nil {
		t.Skip()
	}
	w.begin(name, func(ctx context.Context) { _, _ = w.jobs[n].RunOnce(ctx) })
}

// pick chooses one of the actors.
func (w *world) pick(t *rapid.T) (name string, a *rig.Actor) {
	if len(w.running) == 0 {
		t.Skip()
	}
	name = rapid.SampledFrom(slices.Sorted(maps.Keys(w.running))).Draw(t, "actor")
	return name, w.running[name]
}

// step lets an actor go on to its next message.
func (w *world) step(name string, a *rig.Actor, v rig.Verdict) {
	a.Step(v)
	if a.At == "" {
		delete(w.running, name)
	}
}

// message decides the fate of a held message.
func (w *world) message(t *rapid.T) {
	name, a := w.pick(t)
	w.step(name, a, rapid.SampledFrom([]rig.Verdict{rig.Arrives, rig.LostBefore, rig.AnswerIsLost}).Draw(t, "message"))
}

// runOn lets an actor go on to its end, undisturbed.
func (w *world) runOn(t *rapid.T) {
	name, a := w.pick(t)
	for a.At != "" {
		w.step(name, a, rig.Arrives)
	}
}

// locked reports whether an actor stands within a local transaction and so keeps all others from
// writing.
func (w *world) locked() bool {
	for _, a := range w.running {
		if a.At == "COMMIT" {
			return true
		}
	}
	return false
}

// time passes: leases run out, retentions end. But no actor stands still past the retention of its
// receipts, counted from the end of its log entry. The retention promises no more.
func (w *world) time(t *rapid.T) {
	if w.locked() {
		t.Skip()
	}
	d := rapid.SampledFrom([]time.Duration{2 * worldLease, attempt.DefaultRetention * 6 / 10, attempt.DefaultRetention + worldLease}).Draw(t, "time")
	w.look()
	for _, a := range w.running {
		for _, one := range w.writes {
			if one.gone && a.Since <= one.removed && w.now+d-one.removed >= attempt.DefaultRetention*9/10 {
				t.Skip()
			}
		}
	}
	w.pass(d)
}

func (w *world) pass(d time.Duration) {
	w.now += d
	w.r.ReceiptsAge(d)
	w.r.LogAge(d)
}

// operator retries or discards a unit.
func (w *world) operator(t *rapid.T) {
	units := w.look()
	if len(units) == 0 {
		t.Skip()
	}
	u := rapid.SampledFrom(units).Draw(t, "unit")
	if rapid.IntRange(0, 3).Draw(t, "decision") > 0 {
		_ = w.r.Storage.Retry(context.Background(), u.ID)
		return
	}
	if w.r.Storage.Discard(context.Background(), u.ID) != nil {
		return
	}
	for _, one := range w.writes {
		if one.unit == u.ID {
			one.discarded = true
		}
	}
}

// look reads the log.
func (w *world) look() []*entry.Unit {
	units := w.r.Logs()
	there := map[string]string{}
	for _, u := range units {
		there[u.Statements[0].SQL] = u.ID
	}
	for _, one := range w.writes {
		if id := there[one.sql()]; id != "" {
			one.unit = id
		} else if !one.gone && (one.unit != "" || one.answered) {
			one.gone, one.removed = true, w.now
		}
	}
	return units
}

// check holds at every moment.
func (w *world) check(t *rapid.T) {
	w.look()
	for _, one := range w.writes {
		n := w.r.Count(fmt.Sprintf("SELECT n FROM effect WHERE id = %d", one.id))
		writing := w.running[fmt.Sprintf("writer %d", one.id)] != nil
		switch {
		case n > 1:
			t.Fatalf("%s %d was applied %d times", one.kind, one.id, n)
		case writing || !one.answered:
			if _, delivered := w.byJob.Load(one.unit); delivered && n != 1 {
				t.Fatalf("%s %d was reported delivered by the job and is not applied", one.kind, one.id)
			}
		case one.err == nil && n != 1:
			t.Fatalf("%s %d was reported delivered and is not applied", one.kind, one.id)
		case one.err != nil && !errors.Is(one.err, bedsql.ErrPending) && n != 0:
			t.Fatalf("%s %d was reported not applied (%v) and is", one.kind, one.id, one.err)
		}
	}
}

// quiesce lets everything come to its end.
func (w *world) quiesce() {
	w.finish()
	// A stalled actor may have applied a parked unit since. An operator retries it, which settles
	// the matter.
	for _, u := range w.look() {
		if u.Parked {
			_ = w.r.Storage.Retry(context.Background(), u.ID)
		}
	}
	waits := func(u *entry.Unit) bool { return !u.Parked }
	for rounds := 0; rounds < 20 && slices.ContainsFunc(w.look(), waits); rounds++ {
		w.pass(2 * worldLease)
		w.begin("job 0", func(ctx context.Context) { _, _ = w.jobs[0].RunOnce(ctx) })
		w.finish()
	}
	w.check(w.t)
	parked := map[string]bool{}
	for _, u := range w.look() {
		if !u.Parked {
			w.t.Fatalf("a unit is still in the log: %+v", u)
		}
		parked[u.ID] = true
	}
	for _, one := range w.writes {
		n := w.r.Count(fmt.Sprintf("SELECT n FROM effect WHERE id = %d", one.id))
		if parked[one.unit] && n != 0 {
			w.t.Fatalf("%s %d is applied and its log is parked", one.kind, one.id)
		}
		if errors.Is(one.err, bedsql.ErrPending) && !one.discarded && !parked[one.unit] && n != 1 {
			w.t.Fatalf("%s %d was pending (%v), its log is gone and it is not applied", one.kind, one.id, one.err)
		}
	}
}

func TestExactlyOnceHoldsUnderAnyInterleaving(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, w.run)
}

// A unit was applied, but stayed in the log for longer than receipts are kept. A
// job claims it and stands still until its lease is over, an operator discards it,
// and another job purges: the first one comes back, and must meet the receipt.
func TestReceiptOfDiscardedUnitOutlivesAStalledWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running = map[string]*rig.Actor{}
	w.r.Exec("INSERT INTO effect VALUES (1, 0)")
	one := &written{id: 1}
	w.begin("writer", func(ctx context.Context) { one.err = writers["write"](ctx, w.pools[0], one.sql()) })
	for a := w.running["writer"]; a.At != ""; {
		v := rig.Arrives
		if a.At == "COMMIT" {
			v = rig.AnswerIsLost
		}
		w.step("writer", a, v)
	}
	if !errors.Is(one.err, bedsql.ErrPending) {
		t.Fatalf("the writer got %v, want that it is pending", one.err)
	}
	w.pass(attempt.DefaultRetention + worldLease)
	round := func(n int) func(context.Context) {
		return func(ctx context.Context) { _, _ = w.jobs[n].RunOnce(ctx) }
	}
	w.begin("job that stands still", round(0))
	if w.running["job that stands still"] == nil {
		t.Fatal("the job did not begin to deliver")
	}
	w.pass(2 * worldLease)
	if err := w.r.Storage.Discard(t.Context(), w.r.Logs()[0].ID); err != nil {
		t.Fatal(err)
	}
	round(1)(t.Context())
	w.pass(worldLease)
	round(1)(t.Context())
	w.finish()
	if n := w.r.Count("SELECT n FROM effect WHERE id = 1"); n != 1 {
		t.Errorf("the write was applied %d times", n)
	}
	w.pass(attempt.DefaultRetention)
	round(1)(t.Context())
	w.r.WantReceipts(0)
}
