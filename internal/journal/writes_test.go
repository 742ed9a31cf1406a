package journal_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// The outcomes of all writes are counted. Attempts are kept only of writes left to the job or an
// operator.
func TestTheWrapperTellsWhatBecomesOfWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log, target := open(t, db), testdb.SQLite(t)
		target.DSN = "file:" + target.Name + "?_pragma=busy_timeout(1)&_pragma=journal_mode(WAL)&bedDataSource=orders"
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		bus := listener.NewBus(quiet)
		name := "journal-" + db.Name
		must(t, sqlite.Register(name, bedsql.Config{
			Storage: log, Bus: bus, Logger: quiet, SyncMaxDeliveryTryTimes: 2, RetryInitial: time.Millisecond, RetryMax: time.Millisecond,
		}))
		pool, err := sql.Open(name, target.DSN)
		must(t, err)
		t.Cleanup(func() { _ = pool.Close() })
		bare := target.Open(t)
		exec := func(text string) error {
			_, err := pool.ExecContext(t.Context(), text)
			return err
		}
		must(t, exec("CREATE TABLE t (id INT PRIMARY KEY)"))

		const good = 20
		for i := range good {
			must(t, exec(fmt.Sprintf("INSERT INTO t VALUES (%d)", i)))
		}
		if exec("INSERT INTO t VALUES (0)") == nil {
			t.Error("a duplicate key was taken")
		}
		lock := func() *sql.Conn {
			conn, err := bare.Conn(t.Context())
			must(t, err)
			_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
			must(t, err)
			return conn
		}
		unlock := func(conn *sql.Conn) {
			_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
			_ = conn.Close()
		}
		held := lock()
		err = exec("INSERT INTO t VALUES (100)")
		unlock(held)
		var pending *bedsql.PendingError
		if !errors.As(err, &pending) {
			t.Fatalf("got %v, want that it is pending", err)
		}
		attempts, err := logdb.Journal(log).ReadAttempts(t.Context(), pending.EntryID, 10)
		must(t, err)
		var got []string
		for _, a := range attempts {
			got = append(got, a.Origin+" "+a.Class)
			if a.Err == "" {
				t.Error("an attempt has no error")
			}
		}
		if fmt.Sprint(got) != "[sync retry contention sync retry contention caller contention]" {
			t.Errorf("the attempts are %q", got)
		}

		// The first attempt meets the lock, the retry does not.
		held = lock()
		var once sync.Once
		sub := bus.Subscribe(func(ev listener.Event) {
			if ev.Type == listener.ExecuteFailure {
				once.Do(func() { unlock(held) })
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		retried := 0
		for {
			if _, err = pool.ExecContext(ctx, "INSERT INTO t VALUES (101)"); err == nil || ctx.Err() != nil {
				break
			}
			retried++ // the listener came later than the retries
		}
		must(t, err)
		sub.Close()

		soft, s, err := bedsql.Begin(t.Context())
		must(t, err)
		_, err = pool.ExecContext(soft, "INSERT INTO t VALUES (0)")
		must(t, err)
		if s.End(t.Context()) == nil {
			t.Error("End does not tell of the refusal")
		}
		parked, err := log.List(t.Context(), txlog.Filter{Parked: true})
		must(t, err)
		if len(parked) != 1 {
			t.Fatalf("%d are parked", len(parked))
		}
		if all, err := logdb.Journal(log).ReadAttempts(t.Context(), parked[0].ID, 10); err != nil || len(all) != 1 || all[0].Class != "duplicate key" {
			t.Errorf("the attempts are %+v, %v", all, err)
		}

		must(t, logdb.Journal(log).Flush(t.Context()))
		minutes, err := logdb.Journal(log).ReadActivity(t.Context(), time.Hour)
		must(t, err)
		var sum journal.Counts
		for _, m := range minutes {
			if m.DataSource != "orders" {
				t.Errorf("of %q is reported", m.DataSource)
			}
			for o, n := range m.Counts {
				sum[o] += n
			}
		}
		delivered := sum[journal.AtOnce] + sum[journal.SyncRetry]
		sum[journal.AtOnce], sum[journal.SyncRetry] = 0, 0
		if want := (journal.Counts{journal.Pending: int64(1 + retried), journal.Refused: 1, journal.Parked: 1}); sum != want || delivered != good+1 {
			t.Errorf("counted are %v, want %v; %d delivered, want %d", sum, want, delivered, good+1)
		}
		var kept int
		must(t, db.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(DISTINCT unit_id) FROM bed_attempt").Scan(&kept))
		if kept != 2+retried {
			t.Errorf("attempts of %d entries are kept, want those of the %d that were left", kept, 2+retried)
		}
	})
}

// This is the cost of counting for a write without trouble.
func BenchmarkCount(b *testing.B) {
	log, err := txlog.Open(b.Context(), testdb.DriverSQLite, testdb.SQLite(b).DSN)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	tally := logdb.Journal(log).Tally("orders")
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			tally.Count(journal.AtOnce, 1)
		}
	})
}
