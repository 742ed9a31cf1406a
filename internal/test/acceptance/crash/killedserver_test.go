package crash

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// The writes of a test that kills servers.
const (
	killWriters     = 8
	killWrites      = 60 // of each writer, one after the other
	killTimes       = 4
	killSeed        = 20170501
	killRowsOfWrite = 3
)

// before is the value of the rows that are there from the start, for updates
// and deletes.
const before = -1

// answer is what a writer got for one row.
type answer struct {
	id int
	// old and new are the row's values without and with the write; nil: no row.
	old, new *int
	// accepted: it must be applied in the end; else it must not be, unless
	// unknown.
	accepted bool
	unknown  bool
	inTx     bool
	how      string
	err      error
}

func value(v int) *int { return &v }

// killWriter makes a row of writes, each into rows of its own, so that each is
// idempotent and none depends on their order.
type killWriter struct {
	r    *rig.Rig
	pool *sql.DB
	rnd  *rand.Rand
	next int // the next id
	// prepared is the upsert as a statement of the whole pool.
	prepared *sql.Stmt
}

// dml is a random write into the next row, with its arguments.
func (w *killWriter) dml() (query string, args []any, a answer) {
	id, v := w.next, w.rnd.IntN(1000)
	w.next++
	a = answer{id: id, new: value(v)}
	if id%2 == 0 {
		a.old = value(before)
	}
	switch kind := w.rnd.IntN(2); {
	case a.old == nil && kind == 0:
		return w.r.Q("INSERT INTO item (id, v) VALUES (?, ?)"), []any{id, v}, a
	case a.old == nil:
		return w.r.Q(upsertItem.For(w.r.DB.Driver)), []any{id, v}, a
	case kind == 0:
		return w.r.Q("UPDATE item SET v = ? WHERE id = ?"), []any{v, id}, a
	default:
		a.new = nil
		return w.r.Q("DELETE FROM item WHERE id = ?"), []any{id}, a
	}
}

var upsertItem = testdb.By[string]{
	MySQL:    "INSERT INTO item (id, v) VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)",
	Postgres: "INSERT INTO item (id, v) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
	SQLite:   "INSERT INTO item (id, v) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
}

// judge reads an answer by the rule of truth.
func (a answer) judge(how string, err error) answer {
	a.how, a.err = how, err
	a.accepted = err == nil || errors.Is(err, bedsql.ErrPending) || errors.Is(err, bedsql.ErrRowsUnknown) || errors.Is(err, txlog.ErrInDoubt)
	// The log's own write was in doubt for longer than it is repeated: the caller learned that the
	// outcome is unknown.
	a.unknown = errors.Is(err, txlog.ErrInDoubt)
	return a
}

// write makes one write of a random kind and tells what was answered.
func (w *killWriter) write() []answer {
	ctx := context.Background()
	switch w.rnd.IntN(6) {
	case 0:
		return w.transaction(ctx, w.rnd.IntN(5) == 0)
	case 1:
		return w.soft(ctx)
	case 2:
		return w.returning(ctx)
	case 3:
		id, v := w.next, w.rnd.IntN(1000)
		w.next++
		a := answer{id: id, new: value(v)}
		if id%2 == 0 {
			a.old = value(before)
		}
		_, err := w.prepared.ExecContext(ctx, id, v)
		return []answer{a.judge("a prepared statement", err)}
	default:
		query, args, a := w.dml()
		_, err := w.pool.ExecContext(ctx, query, args...)
		return []answer{a.judge(query, err)}
	}
}

func (w *killWriter) returning(ctx context.Context) []answer {
	id, v := w.next, w.rnd.IntN(1000)
	w.next++
	a := answer{id: id, new: value(v)}
	if id%2 == 0 {
		a.old = value(before)
	}
	var got int
	err := w.pool.QueryRowContext(ctx, w.r.Q(upsertItem.For(w.r.DB.Driver)+" RETURNING v"), id, v).Scan(&got)
	if err == nil && got != v {
		w.r.T.Errorf("RETURNING gave %d, want %d", got, v)
	}
	return []answer{a.judge("a write with RETURNING", err)}
}

// transaction is a local transaction of several writes: all of it takes
// effect, or nothing.
func (w *killWriter) transaction(ctx context.Context, rollback bool) []answer {
	var all []answer
	end := func(how string, err error) []answer {
		for i := range all {
			all[i] = all[i].judge("a local transaction: "+how, err)
			all[i].inTx = true
		}
		return all
	}
	tx, err := w.pool.BeginTx(ctx, nil)
	if err != nil {
		return nil // nothing was even tried
	}
	for range killRowsOfWrite {
		query, args, a := w.dml()
		all = append(all, a)
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			if errors.Is(err, bedsql.ErrPending) {
				w.r.T.Errorf("inside a local transaction, %s: %v", query, err)
			}
			_ = tx.Rollback()
			return end("a statement failed", fmt.Errorf("before COMMIT: %w", err))
		}
	}
	if rollback {
		_ = tx.Rollback()
		return end("rolled back", errors.New("rolled back"))
	}
	return end("COMMIT", tx.Commit())
}

// soft is a soft transaction of several independent writes, and perhaps of a local transaction.
func (w *killWriter) soft(ctx context.Context) []answer {
	ctx, soft, err := bedsql.Begin(ctx)
	if err != nil {
		w.r.T.Error(err)
		return nil
	}
	var all []answer
	for range killRowsOfWrite {
		query, args, a := w.dml()
		_, err := w.pool.ExecContext(ctx, query, args...)
		if errors.Is(err, bedsql.ErrPending) {
			w.r.T.Errorf("a soft transaction threw a pending write at its caller: %v", err)
		}
		all = append(all, a.judge("soft: "+query, err))
	}
	if w.rnd.IntN(2) == 0 {
		all = append(all, w.transaction(ctx, false)...)
	}
	err = soft.End(ctx)
	var refused *bedsql.RefusedError
	if err != nil && !errors.Is(err, bedsql.ErrPending) && !errors.Is(err, txlog.ErrInDoubt) || errors.As(err, &refused) {
		w.r.T.Errorf("End: %v, want nothing or pending writes", err)
	}
	if errors.Is(err, txlog.ErrInDoubt) {
		// End does not say which of them.
		for i := range all {
			all[i].unknown = true
		}
	}
	return all
}

func TestWritesAroundAKilledServerAreApplied(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name    string
		private func(testing.TB, ...string) *testdb.Server
		shared  func(testing.TB) testdb.DB
	}{
		{testdb.DriverMySQL, testdb.PrivateMariaDB, testdb.MySQL},
		{testdb.DriverPostgres, testdb.PrivatePostgres, testdb.Postgres},
	} {
		for _, layout := range []struct {
			name        string
			target, log bool // whether it is on the server that is killed
		}{
			{"with the target", true, false}, {"with the log", false, true}, {"with both", true, true},
		} {
			t.Run(kind.name+" "+layout.name, func(t *testing.T) {
				t.Parallel()
				server := kind.private(t)
				where := func(killed bool) testdb.DB {
					if killed {
						return server.DB(t)
					}
					return kind.shared(t)
				}
				r := rig.NewWithLog(t, where(layout.target), where(layout.log), func(c *bedsql.Config) {
					if layout.log { // entries that a writer could not hand over are free soon after
						c.Lease, c.LogTimeout = 2*time.Second, time.Second
					}
				})
				killedAllOver(r, server)
			})
		}
	}
}

// killedAllOver writes from several goroutines while a server is killed, or
// shut down, and started again, and then lets the job do its part.
func killedAllOver(r *rig.Rig, server *testdb.Server) {
	r.T.Helper()
	const rows = killWrites * 2 * killRowsOfWrite // of each writer
	r.Exec("CREATE TABLE item (id INT PRIMARY KEY, v INT NOT NULL)")
	for i := range killWriters {
		seed(r, i*rows, (i+1)*rows)
	}
	// Some give up before the server is back, and some are still retrying then.
	hasty := r.Wrapped
	r.Cfg.SyncMaxDeliveryTryTimes, r.Cfg.RetryInitial, r.Cfg.RetryMax = 4, 100*time.Millisecond, 400*time.Millisecond
	pools := []*sql.DB{hasty, r.Open(r.DB.DSN)}
	prepared := make([]*sql.Stmt, len(pools))
	for i, pool := range pools {
		var err error
		if prepared[i], err = pool.Prepare(r.Q(upsertItem.For(r.DB.Driver))); err != nil {
			r.T.Fatal(err)
		}
		defer func() { _ = prepared[i].Close() }()
	}
	// The job goes on all the time.
	ctx, stop := context.WithCancel(context.Background())
	job := r.Job(func(c *asyncjob.Config) { c.Cron, c.Lease = "* * * * * ?", 2*time.Second })
	ended := make(chan error, 1)
	go func() { ended <- job.Run(ctx) }()
	defer stop()

	// The writers hand their answers to this goroutine, which alone may kill
	// the server: while it does they go on for as many answers as have room,
	// and then wait. So every outage sees some writes, and never all of them.
	answers := make(chan []answer, killWriters)
	var writers sync.WaitGroup
	for i := range killWriters {
		writers.Go(func() {
			w := &killWriter{
				r: r, pool: pools[i%len(pools)], prepared: prepared[i%len(pools)],
				rnd: rand.New(rand.NewPCG(killSeed, uint64(i))), next: i * rows,
			}
			for range killWrites {
				answers <- w.write()
			}
		})
	}
	go func() {
		writers.Wait()
		close(answers)
	}()
	when := rand.New(rand.NewPCG(killSeed, killWriters))
	var all []answer
	counts := map[rig.Outcome]int{}
	n, kills := 0, 0
	killAt, startAt := 20+when.IntN(20), 0
	for got := range answers {
		n++
		all = append(all, got...)
		switch {
		case startAt == 0 && kills < killTimes && n >= killAt:
			if kills%2 == 0 {
				server.Kill()
			} else {
				server.Stop() // which answers what is in flight, in its own way
			}
			kills++
			startAt = n + 1 + when.IntN(2*killWriters)
		case startAt > 0 && n >= startAt:
			server.Start()
			startAt, killAt = 0, n+40+when.IntN(40)
		}
	}
	server.Start()
	if kills != killTimes {
		r.T.Fatalf("the server was ended %d times, want %d", kills, killTimes)
	}
	logKilled := r.LogDB.Addr() == server.Addr()
	for _, a := range all {
		o := outcomeOf(a)
		counts[o]++
		if !a.inTx && (o == rig.Refused || o == rig.NotAccepted && !logKilled) {
			r.T.Errorf("%s: %s: %v", a.how, o, a.err)
		}
	}
	r.T.Logf("of %d rows: %v", len(all), counts)
	if logKilled && counts[rig.NotAccepted] == 0 || !logKilled && counts[rig.Pending] == 0 {
		r.T.Error("no write met the outage: nothing was shown")
	}
	stop()
	if err := <-ended; err != nil {
		r.T.Errorf("the job: %v", err)
	}
	rig.Eventually(r.T, "the log is empty", func() bool {
		report, err := job.RunOnce(context.Background())
		if why := r.Parked(); err != nil || why != nil {
			r.T.Fatalf("the job: %s, %v; parked are %v", report, err, why)
		}
		return len(r.Logs()) == 0
	})
	wantApplied(r, all)
}

func outcomeOf(a answer) rig.Outcome {
	switch {
	case a.unknown:
		return "log in doubt"
	case a.err == nil:
		return rig.Delivered
	case a.accepted:
		return rig.Pending
	case errors.Is(a.err, bedsql.ErrNotLogged):
		return rig.NotAccepted
	default:
		return rig.Refused
	}
}

// seed inserts the even rows from one id to below another.
func seed(r *rig.Rig, from, to int) {
	r.T.Helper()
	query := ""
	for id := from; id < to; id++ {
		if id%2 != 0 {
			continue
		}
		if query == "" {
			query = "INSERT INTO item (id, v) VALUES "
		} else {
			query += ", "
		}
		query += fmt.Sprintf("(%d, %d)", id, before)
	}
	r.Exec(query)
}

// wantApplied compares the table with the answers to the writers.
func wantApplied(r *rig.Rig, all []answer) {
	r.T.Helper()
	rows, err := r.Bare.Query("SELECT id, v FROM item")
	if err != nil {
		r.T.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	got := map[int]*int{}
	for rows.Next() {
		var id, v int
		if err := rows.Scan(&id, &v); err != nil {
			r.T.Fatal(err)
		}
		got[id] = &v
	}
	if err := rows.Err(); err != nil {
		r.T.Fatal(err)
	}
	for _, a := range all {
		applied, untouched := same(got[a.id], a.new), same(got[a.id], a.old)
		switch {
		case a.unknown && (applied || untouched):
		case a.accepted && applied:
		case !a.accepted && untouched:
		default:
			r.T.Errorf("row %d is %s, was %s, written %s (accepted: %v, %v) by %s",
				a.id, show(got[a.id]), show(a.old), show(a.new), a.accepted, a.err, a.how)
		}
	}
}

func same(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func show(v *int) string {
	if v == nil {
		return "absent"
	}
	return fmt.Sprint(*v)
}
