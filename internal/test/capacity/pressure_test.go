package capacity

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// pressure is the time of the snapshot, and the amount of data.
type pressure struct {
	held            time.Duration
	parked, backlog int
}

// pressed returns the settings from the environment. Without them the test checks counts and no
// times.
func pressed(t *testing.T) pressure {
	t.Helper()
	text := os.Getenv("BED_TEST_PRESSURE")
	if text == "" {
		return pressure{4 * time.Second, 500, 500}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return pressure{d, 100_000, 20_000}
}

// engine is how a kind of server is pressed.
type engine struct {
	// hold opens a snapshot.
	hold []string
	// dead counts the rows that cannot be cleaned up.
	dead string
}

func TestPressureOnMariaDB(t *testing.T) {
	turn(t, "BED_TEST_PRESSURE")
	press(t, onMariaDB(t, "512M"), engine{
		hold: []string{"START TRANSACTION WITH CONSISTENT SNAPSHOT"},
		dead: "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_history_list_length'",
	})
}

func TestPressureOnPostgreSQL(t *testing.T) {
	turn(t, "BED_TEST_PRESSURE")
	press(t, onPostgreSQL(t, "512MB", "autovacuum_naptime=5s"), engine{
		hold: []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT COUNT(*) FROM bed_log"},
		dead: "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'transaction_log'",
	})
}

// timed tells how long claims take.
type timed struct {
	*txlog.SQLStorage
	mu   sync.Mutex
	took times
}

func (s *timed) Claim(ctx context.Context, r entry.ClaimRequest) ([]*entry.Unit, error) {
	began := time.Now()
	units, err := s.SQLStorage.Claim(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, time.Since(began))
	return units, err
}

func (s *timed) taken() times {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := s.took
	s.took = nil
	return took
}

// inflow is how many units become due each second.
const inflow = 800

// press delivers a steady flow and then a backlog, first as it is, then while a
// snapshot is held in the log's database, then after it was released.
func press(t *testing.T, on kind, e engine) {
	t.Helper()
	p, ctx := pressed(t), t.Context()
	bare, opened := on.table(t), on.storage(t)
	to, err := on.targetOf(on.dsn())
	if err != nil {
		t.Fatal(err)
	}
	storage, admin := &timed{SQLStorage: opened}, on.log.Open(t)
	park(t, opened, admin, to, p.parked)

	var delivered, next atomic.Int64
	job := worker(t, storage, to, asyncjob.Config{Cron: everySecond}, func(n int64) { delivered.Add(n) })
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- job.Run(running) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := job.Close(); err != nil {
			t.Error(err)
		}
	}()

	add := func(n int) {
		list := make([]*entry.Unit, n)
		for i := range list {
			list[i] = unit(to, next.Add(1))
		}
		if err := opened.Add(ctx, writerLease, list...); err != nil {
			t.Fatal(err)
		}
	}
	await := func() {
		for delivered.Load() < next.Load() {
			time.Sleep(5 * time.Millisecond)
		}
	}
	phase := func(what string, lasts time.Duration) {
		storage.taken()
		start, from := time.Now(), delivered.Load()
		for n := 0; time.Since(start) < lasts; {
			if all := int(time.Since(start).Seconds() * inflow); all > n {
				last := entry.NewID()
				add(all - n)
				leave(t, opened, last)
				n = all
			}
			time.Sleep(20 * time.Millisecond)
		}
		flow := float64(delivered.Load()-from) / time.Since(start).Seconds()
		await()
		steady := storage.taken()
		last := entry.NewID()
		for left := p.backlog; left > 0; left -= min(left, 200) {
			add(min(left, 200))
		}
		leave(t, opened, last)
		start, from = time.Now(), delivered.Load()
		await()
		took := time.Since(start)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%s: %.0f/s of %d/s delivered; claims: %v; a backlog at %.0f/s, claims: %v; dead: %s; heap %d MiB",
			what, flow, inflow, steady, float64(delivered.Load()-from)/took.Seconds(), storage.taken(), scan(t, admin, e.dead), m.HeapAlloc>>20)
	}
	phase("without a snapshot", p.held/4)
	snapshot, err := admin.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range e.hold {
		if _, err := snapshot.ExecContext(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	phase("snapshot held", p.held)
	if _, err := snapshot.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Close(); err != nil {
		t.Fatal(err)
	}
	phase("after its release", p.held/4)
	if left := scan(t, admin, "SELECT COUNT(*) FROM transaction_log WHERE parked = 0"); left != "0" {
		t.Errorf("%s entries are left", left)
	}
	if rows, want := scan(t, bare, "SELECT COUNT(*) FROM line"), fmt.Sprint(next.Load()); rows != want {
		t.Errorf("%s rows were applied, not %s", rows, want)
	}
}

// park leaves n units for an operator.
func park(t *testing.T, storage *txlog.SQLStorage, admin *sql.DB, to delivery.Target, n int) {
	t.Helper()
	fill(t, storage, to, 0, n)
	if _, err := admin.Exec("UPDATE transaction_log SET parked = 1, lease_token = NULL, lease_until = NULL"); err != nil {
		t.Fatal(err)
	}
}

func scan(t *testing.T, db *sql.DB, query string) (v string) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
