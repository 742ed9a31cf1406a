package asyncjob

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// sqlLog opens a log in a database.
func sqlLog(t *testing.T, db testdb.DB) *txlog.SQLStorage {
	t.Helper()
	s, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// decide is an operator's decision for a data source.
func decide(t *testing.T, s *txlog.SQLStorage, name string, paused bool, perSecond int) {
	t.Helper()
	statement, args, err := logdb.Journal(s).ControlStatement(name, &paused, &perSecond)
	must(t, err)
	_, err = logdb.Journal(s).DB().ExecContext(t.Context(), statement, args...)
	must(t, err)
}

func TestPausedDataSourceIsLeftAloneUntilResumed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		u := add(t, store, "orders", "one", nil)
		add(t, store, "stock", "one", nil)
		decide(t, store, "orders", true, 0)
		orders, stock := &fakeDB{}, &fakeDB{}
		cfg, hook := logged()
		job := newJob(t, store, Targets{"orders": orders.target(), "stock": stock.target()}, cfg)
		for range 2 {
			r := runOnce(t, job)
			if !r.DataSources["orders"].Paused || r.DataSources["orders"].Claimed != 0 || !strings.Contains(r.String(), "paused: orders") {
				t.Errorf("report: %v", r)
			}
		}
		if _, sent := orders.counts(); sent != 0 {
			t.Errorf("%d statements were sent to a data source that is paused", sent)
		}
		if _, sent := stock.counts(); sent != 1 {
			t.Errorf("%d statements were sent to the other, want 1", sent)
		}
		if got := get(t, store, u); got.Tries != 0 || got.Parked || got.Leased {
			t.Errorf("got %+v", got)
		}
		if said := strings.Join(warnings(hook), "\n"); strings.Count(said, "paused") != 1 {
			t.Errorf("it was said %q, want once that it is paused", said)
		}
		decide(t, store, "orders", false, 0)
		if r := runOnce(t, job); r.DataSources["orders"].Delivered != 1 || r.DataSources["orders"].Paused {
			t.Errorf("report: %v", r)
		}
	})
}

// An operator resumes a data source when it is back: while it is paused, that is still seen.
func TestPausedDataSourceIsStillProbed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		add(t, store, "orders", "one", nil)
		var down atomic.Bool
		target := &fakeDB{onDial: func(context.Context) error {
			if down.Load() {
				return errRefusedDial
			}
			return nil
		}}
		job := newJob(t, store, Targets{"orders": target.target()}, brittle())
		decide(t, store, "orders", true, 0)
		for _, want := range []bool{false, true} {
			down.Store(!want)
			if r := runOnce(t, job); r.DataSources["orders"].Paused != want || r.Claimed != 0 || (r.DataSources["orders"].Unreachable == nil) != want {
				t.Errorf("report: %v", r)
			}
			all, err := logdb.Journal(store).ReadSources(t.Context())
			must(t, err)
			told := false
			for _, v := range all {
				if v.DataSource == "orders" && v.Job != "" {
					told = v.Reachable == want
				}
			}
			if !told {
				t.Errorf("reachable is %v, and operators see %+v", want, all)
			}
		}
		if _, sent := target.counts(); sent != 0 {
			t.Errorf("%d statements were sent", sent)
		}
	})
}

// A pause during a round ends the round: running deliveries finish, and no more units are claimed.
func TestAPauseDuringARoundEndsIt(t *testing.T) {
	t.Parallel()
	store := sqlLog(t, testdb.SQLite(t))
	addMany(t, store, "orders", 50)
	var once sync.Once
	db := &fakeDB{onExec: func(context.Context, string) error {
		once.Do(func() { decide(t, store, "orders", true, 0) })
		return nil
	}}
	cfg := brittle()
	cfg.TransactionLogFetchDataCount, cfg.Concurrency = 5, 1
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
	if row := r.DataSources["orders"]; !row.Paused || row.Delivered == 0 || row.Delivered > 10 {
		t.Errorf("report: %v", r)
	}
}

// The clock is the log's, the waiting is the test's: it is over at once.
func TestRateLimitHoldsAcrossAllJobs(t *testing.T) {
	t.Parallel()
	const limit, units = 100, 60
	store := sqlLog(t, testdb.SQLite(t))
	addMany(t, store, "orders", units)
	decide(t, store, "orders", false, limit)
	db := &fakeDB{}
	cfg := brittle()
	cfg.Concurrency = 4
	start := time.Now()
	var all sync.WaitGroup
	var delivered, waits atomic.Int64
	for range 3 {
		job := newJob(t, store, Targets{"orders": db.target()}, cfg)
		job.control.after = func(d time.Duration) <-chan time.Time {
			waits.Add(1)
			return time.After(d)
		}
		all.Go(func() {
			r, err := job.RunOnce(context.Background())
			if err != nil {
				t.Error(err)
			}
			delivered.Add(int64(r.Delivered))
		})
	}
	all.Wait()
	if delivered.Load() != units {
		t.Errorf("%d are delivered, want %d", delivered.Load(), units)
	}
	// The initial grant leaves at once, worth a tenth of a second.
	if least := time.Duration(units-limit/10) * time.Second / limit; time.Since(start) < least {
		t.Errorf("%d units took %v with %d per second, want %v at least", units, time.Since(start), limit, least)
	}
	if waits.Load() == 0 {
		t.Error("nobody waited")
	}
}

func TestOperatorsSeeLiveJobsAndReachableDataSources(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		add(t, store, "orders", "one", nil)
		add(t, store, "stock", "one", nil)
		var down atomic.Bool
		down.Store(true)
		orders := &fakeDB{onDial: func(context.Context) error {
			if down.Load() {
				return errRefusedDial
			}
			return nil
		}}
		cfg := brittle()
		cfg.Name = "nightly"
		job := newJob(t, store, Targets{"orders": orders.target(), "stock": (&fakeDB{}).target()}, cfg)
		views := func() map[string]journal.View {
			all, err := logdb.Journal(store).ReadSources(t.Context())
			must(t, err)
			m := map[string]journal.View{}
			for _, v := range all {
				m[v.DataSource] = v
			}
			return m
		}
		runOnce(t, job)
		v := views()
		if me := v[""]; !me.Alive || !strings.Contains(me.Name, "nightly on ") || me.Job == "" {
			t.Errorf("the job is reported as %+v", me)
		}
		if o := v["orders"]; o.Reachable || o.LastError != errRefusedDial.Error() || o.Since.IsZero() || o.Job != v[""].Job {
			t.Errorf("orders is reported as %+v", o)
		}
		if s := v["stock"]; !s.Reachable || s.LastError != "" {
			t.Errorf("stock is reported as %+v", s)
		}
		since := v["orders"].Since
		runOnce(t, job)
		if now := views()["orders"].Since; !now.Equal(since) {
			t.Errorf("it is down since %v, before it was %v", now, since)
		}
		down.Store(false)
		runOnce(t, job)
		if o := views()["orders"]; !o.Reachable || o.LastError != "" {
			t.Errorf("orders is reported as %+v", o)
		}
		must(t, job.Close())
		if v := views(); len(v) != 0 {
			t.Errorf("after its end there is %+v", v)
		}
	})
}

func TestFailedAttemptsAndActivityAreRecorded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		bad := add(t, store, "orders", "bad", nil)
		refused := add(t, store, "orders", "refused", nil)
		add(t, store, "orders", "good", nil)
		target := &fakeDB{onExec: func(_ context.Context, query string) error {
			switch query {
			case "bad":
				return answer{dialect.Retryable, "fake: busy"}
			case "refused":
				return answer{dialect.Refused, "fake: no"}
			}
			return nil
		}}
		cfg := brittle()
		cfg.RetryDelay = NoDelay
		job := newJob(t, store, Targets{"orders": target.target()}, cfg)
		for range 3 {
			runOnce(t, job)
		}
		for u, want := range map[*entry.Unit]string{bad: "async job retryable fake: busy", refused: "async job refused fake: no"} {
			all, err := logdb.Journal(store).ReadAttempts(t.Context(), u.ID, 10)
			must(t, err)
			if n := map[*entry.Unit]int{bad: 3, refused: 1}[u]; len(all) != n {
				t.Fatalf("got %+v, want %d", all, n)
			}
			if got := fmt.Sprint(all[0].Origin, " ", all[0].Class, " ", all[0].Err); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		must(t, logdb.Journal(store).Flush(t.Context()))
		minutes, err := logdb.Journal(store).ReadActivity(t.Context(), time.Hour)
		must(t, err)
		var sum journal.Counts
		for _, m := range minutes {
			for o, n := range m.Counts {
				sum[o] += n
			}
		}
		if want := (journal.Counts{journal.AsyncJob: 1, journal.Parked: 2}); sum != want {
			t.Errorf("counted are %v, want %v", sum, want)
		}
	})
}

// A job does its work whatever becomes of the tables for operators.
func TestRoundDoesNotDependOnOperatorTables(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		addMany(t, store, "orders", 3)
		add(t, store, "orders", "bad", nil)
		pool := db.Open(t)
		for _, table := range journal.Tables {
			_, err := pool.ExecContext(t.Context(), "DROP TABLE "+table)
			must(t, err)
		}
		target := &fakeDB{onExec: func(_ context.Context, query string) error {
			if query == "bad" {
				return answer{dialect.Refused, "fake: no"}
			}
			return nil
		}}
		// The first round may discover their absence.
		job := newJob(t, store, Targets{"orders": target.target()}, brittle())
		var delivered, parked int
		for range 2 {
			r, err := job.RunOnce(t.Context())
			if err != nil {
				t.Error(err)
			}
			delivered, parked = delivered+r.Delivered, parked+r.Parked
		}
		if delivered != 3 || parked != 1 {
			t.Errorf("%d delivered, %d parked, want 3 and 1", delivered, parked)
		}
	})
}

// After an outage one unit shows whether the data source bears it, then two, then four.
func TestDataSourceIsApproachedSlowlyAfterOutage(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 200)
	var down atomic.Bool
	down.Store(true)
	var mu sync.Mutex
	flying, done, most, tooMany := 0, 0, 0, 0
	landed := sync.Cond{L: &mu}
	db := &fakeDB{
		onDial: func(context.Context) error {
			if down.Load() {
				return errRefusedDial
			}
			return nil
		},
		onExec: func(context.Context, string) error {
			mu.Lock()
			defer mu.Unlock()
			flying++
			most = max(most, flying)
			if flying > done+1 {
				tooMany++
			}
			// No delivery ends before the permitted number has begun, so that the maximum shows.
			landed.Broadcast()
			for flying < min(done+1, 16) && done < 150 {
				landed.Wait()
			}
			flying--
			done++
			landed.Broadcast()
			return nil
		},
	}
	job := newJob(t, store, Targets{"orders": db.target()}, brittle())
	if r := runOnce(t, job); !errors.Is(r.DataSources["orders"].Unreachable, errRefusedDial) {
		t.Fatalf("report: %v", r)
	}
	down.Store(false)
	if r := runOnce(t, job); r.Delivered != 200 {
		t.Errorf("report: %v", r)
	}
	if tooMany > 0 || most != 16 {
		t.Errorf("%d units left before enough were through; at most %d flew together, want 16", tooMany, most)
	}
}

// Operators' decisions hold while they cannot be read: MySQL reports too many connections by the
// SQLSTATE of a missing right.
func TestAPauseHoldsThroughAMomentWithoutConnections(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	admin, user := db.Open(t), "u"+db.Name[max(0, len(db.Name)-20):]
	for _, text := range []string{
		"CREATE USER " + user + "@'%' IDENTIFIED BY 'x'", "GRANT ALL ON `" + db.Name + "`.* TO " + user + "@'%'",
	} {
		_, err := admin.ExecContext(t.Context(), text)
		must(t, err)
	}
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP USER "+user+"@'%'") })
	limited := db
	limited.DSN = user + ":x" + db.DSN[strings.LastIndex(db.DSN, "@"):]
	store := sqlLog(t, limited)
	add(t, store, "orders", "one", nil)
	decide(t, store, "orders", true, 0)
	orders := &fakeDB{}
	job := newJob(t, store, Targets{"orders": orders.target()}, brittle())
	runOnce(t, job)
	logdb.Journal(store).DB().SetMaxIdleConns(-1) // as after they were idle for long
	most := func(n int) {
		_, err := admin.ExecContext(t.Context(), fmt.Sprintf("ALTER USER %s@'%%' WITH MAX_USER_CONNECTIONS %d", user, n))
		must(t, err)
	}
	most(1)
	other := limited.Open(t)
	var conn *sql.Conn
	until(t, "the server has noticed which connections are closed", func() (there bool) {
		var err error
		conn, err = other.Conn(t.Context())
		return err == nil
	})
	if _, _, err := job.control.reserve(t.Context(), "orders", 1); err == nil {
		t.Error("the log answers although it takes no connection")
	}
	must(t, conn.Close())
	must(t, other.Close())
	most(0)
	runOnce(t, job)
	if _, sent := orders.counts(); sent != 0 {
		t.Errorf("%d units were sent to a paused data source", sent)
	}
}

// Operators' decisions have been read once. If their table is then missing or forbidden, it does
// not count as never used.
func TestDroppedTableDoesNotForgetOperatorDecisions(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		add(t, store, "orders", "one", nil)
		decide(t, store, "orders", true, 0)
		orders := &fakeDB{}
		job := newJob(t, store, Targets{"orders": orders.target()}, brittle())
		runOnce(t, job)
		_, err := db.Open(t).ExecContext(t.Context(), "DROP TABLE bed_data_source")
		must(t, err)
		for range 2 {
			if r, err := job.RunOnce(t.Context()); err == nil || r.Delivered > 0 {
				t.Errorf("the round: %v, %v", r, err)
			}
		}
		if _, sent := orders.counts(); sent != 0 {
			t.Errorf("%d units were sent to a paused data source", sent)
		}
	})
}
