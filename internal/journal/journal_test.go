package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	_ "github.com/bedsql/bed/bedsql/mysql"    // the log's backends
	_ "github.com/bedsql/bed/bedsql/postgres" // …
	_ "github.com/bedsql/bed/bedsql/sqlite"   // …
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, db testdb.DB, opts ...txlog.Option) *txlog.SQLStorage {
	t.Helper()
	s, err := txlog.Open(t.Context(), db.Driver, db.DSN, opts...)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func unit() *entry.Unit {
	id := entry.NewID()
	return &entry.Unit{ID: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}}
}

func TestFailedAttemptsAreKeptWithTheirEntry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		u := unit()
		must(t, s.Add(t.Context(), time.Minute, u))
		now := time.Now()
		must(t, s.Release(t.Context(), u, entry.Verdict{Err: "no", Attempts: []journal.Attempt{
			{At: now.Add(-time.Hour), Origin: "caller", Class: "unknown", Err: "it broke\x00 \xff"},
			{At: now, Origin: "sync retry", Class: "retryable", Err: strings.Repeat("ä", 10_000)},
		}}))
		all, err := logdb.Journal(s).ReadAttempts(t.Context(), u.ID, 100)
		must(t, err)
		if len(all) != 2 || all[0].Origin != "sync retry" || all[0].Class != "retryable" || len(all[0].Err) > 8<<10 || all[1].Origin != "caller" || all[1].Err != "it broke\uFFFD \uFFFD" {
			t.Fatalf("got %.300v", all)
		}
		if d := all[0].At.Sub(all[1].At); d < 59*time.Minute || d > 61*time.Minute {
			t.Errorf("the attempts are %v apart, want an hour", d)
		}
		if one, err := logdb.Journal(s).ReadAttempts(t.Context(), u.ID, 1); err != nil || len(one) != 1 || one[0].Origin != "sync retry" {
			t.Errorf("got %v, %v, want the newest", one, err)
		}
	})
}

// A missing or damaged table keeps no records, and costs no write.
func TestWritesDoNotDependOnOperatorTables(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, create := range []bool{false, true} {
			s := open(t, db)
			pool := db.Open(t)
			for _, table := range journal.Tables {
				_, err := pool.ExecContext(t.Context(), "DROP TABLE "+table)
				must(t, err)
			}
			if !create {
				s = open(t, db, txlog.WithoutCreate())
				if off := logdb.Journal(s).Off(); len(off) != len(journal.Tables) {
					t.Errorf("off are %v, want all", off)
				}
			}
			u, v := unit(), unit()
			tally := logdb.Journal(s).Tally("orders")
			tally.Count(journal.Pending, 1)
			must(t, s.Add(t.Context(), time.Minute, u, v))
			must(t, s.Release(t.Context(), u, entry.Verdict{Attempts: []journal.Attempt{{Err: "no"}}}))
			must(t, s.Remove(t.Context(), v))
			_ = logdb.Journal(s).Flush(t.Context())
			_ = logdb.Journal(s).Purge(t.Context())
			_ = logdb.Journal(s).Beat(t.Context(), "job", "job", time.Minute)
			if off := logdb.Journal(s).Off(); off[journal.Attempts] == nil {
				t.Errorf("off are %v, want %s among them", off, journal.Attempts)
			}
			var told []string
			for range 3 {
				logdb.Journal(s).TellOff(func(args ...any) { told = append(told, fmt.Sprint(args...)) })
			}
			off := logdb.Journal(s).Off()
			if len(told) != len(off) {
				t.Errorf("it was said %q of %d tables", told, len(off))
			}
			for table := range off {
				if !strings.Contains(strings.Join(told, "\n"), table) {
					t.Errorf("%q does not name %s", told, table)
				}
			}
			// An older log gets them at the next opening.
			if off := logdb.Journal(open(t, db)).Off(); len(off) > 0 {
				t.Errorf("off are %v after another opening", off)
			}
		}
	})
}

// An account without rights on them writes nevertheless.
func TestMissingRightsOnOperatorTablesStopNoWrite(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	open(t, db)
	admin, name := db.Open(t), "j"+db.Name[max(0, len(db.Name)-20):]
	for _, text := range []string{
		"CREATE USER " + name + "@'%' IDENTIFIED BY 'x'",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + db.Name + ".transaction_log TO " + name + "@'%'",
		"GRANT SELECT, INSERT ON " + db.Name + ".bed_log TO " + name + "@'%'",
		"GRANT SELECT ON " + db.Name + ".bed_attempt TO " + name + "@'%'",
	} {
		_, err := admin.ExecContext(t.Context(), text)
		must(t, err)
	}
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP USER "+name+"@'%'") })
	low := db
	low.DSN = strings.Replace(db.DSN, "root@", name+":x@", 1)
	s := open(t, low)
	if off := logdb.Journal(s).Off(); len(off) != 3 || off[journal.Attempts] != nil {
		t.Errorf("off are %v", off)
	}
	u := unit()
	must(t, s.Add(t.Context(), time.Minute, u))
	must(t, s.Release(t.Context(), u, entry.Verdict{Attempts: []journal.Attempt{{Err: "no"}}}))
	if off := logdb.Journal(s).Off(); off[journal.Attempts] == nil {
		t.Errorf("off are %v, want the attempts too", off)
	}
}

func TestWhatProcessesCountIsAddedUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const processes, each = 3, 100
		var all sync.WaitGroup
		for range processes {
			s := open(t, db)
			all.Go(func() {
				for range 5 {
					for range each / 5 {
						for _, name := range []string{"orders", "users"} {
							logdb.Journal(s).Tally(name).Count(journal.AtOnce, 1)
							logdb.Journal(s).Tally(name).Count(journal.Refused, 2)
						}
					}
					if err := logdb.Journal(s).Flush(context.Background()); err != nil {
						t.Error(err)
					}
				}
				logdb.Journal(s).Tally("orders").Count(journal.AsyncJob, 7) // written by Close
				_ = s.Close()
			})
		}
		all.Wait()
		minutes, err := logdb.Journal(open(t, db)).ReadActivity(t.Context(), time.Hour)
		must(t, err)
		sum := map[string]journal.Counts{}
		for _, m := range minutes {
			if m.Start.UnixMilli()%60_000 != 0 {
				t.Errorf("a minute begins at %v", m.Start)
			}
			c := sum[m.DataSource]
			for o, n := range m.Counts {
				c[o] += n
			}
			sum[m.DataSource] = c
		}
		if want := (journal.Counts{journal.AtOnce: processes * each, journal.AsyncJob: processes * 7, journal.Refused: 2 * processes * each}); sum["orders"] != want {
			t.Errorf("of orders %v were counted, want %v", sum["orders"], want)
		}
		if len(minutes) > 4 {
			t.Errorf("%d rows for two data sources", len(minutes))
		}
		off := open(t, db, txlog.WithoutActivity())
		logdb.Journal(off).Tally("orders").Count(journal.AtOnce, 1)
		if logdb.Journal(off).Tally("orders") != nil {
			t.Error("it counts although that is switched off")
		}
	})
}

func TestJobsTogetherTakeNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const limit = 200
		first := open(t, db)
		j := logdb.Journal(first)
		n, _, c, err := j.Reserve(t.Context(), "orders", 50)
		must(t, err)
		if n != 50 || c != (journal.Control{}) {
			t.Errorf("without a limit %d of 50 are granted, %+v", n, c)
		}
		set := func(paused *bool, perSecond *int) {
			statement, args, err := j.ControlStatement("orders", paused, perSecond)
			must(t, err)
			_, err = j.DB().ExecContext(t.Context(), statement, args...)
			must(t, err)
		}
		yes, no, some := true, false, limit
		set(&yes, nil)
		if n, _, c, err = j.Reserve(t.Context(), "orders", 50); n != 0 || !c.Paused || err != nil {
			t.Errorf("while it is paused %d are granted, %+v, %v", n, c, err)
		}
		set(&no, nil)
		set(nil, &some)
		if _, _, c, err = j.Reserve(t.Context(), "orders", 0); c != (journal.Control{PerSecond: limit}) || err != nil {
			t.Errorf("got %+v, %v", c, err)
		}
		logs := []*txlog.SQLStorage{first, open(t, db), open(t, db)}
		var mu sync.Mutex
		var all sync.WaitGroup
		granted, start := 0, time.Now()
		for _, s := range logs {
			all.Go(func() {
				for time.Since(start) < time.Second {
					n, wait, _, err := logdb.Journal(s).Reserve(context.Background(), "orders", 50)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					granted += n
					mu.Unlock()
					<-time.After(wait)
				}
			})
		}
		all.Wait()
		if most := float64(limit) * (time.Since(start).Seconds() + 0.2); float64(granted) > most || granted == 0 {
			t.Errorf("%d were granted in %v, want at most %.0f", granted, time.Since(start), most)
		}
	})
}

func TestWhatJobsTellIsRead(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		j := logdb.Journal(open(t, db))
		must(t, j.Beat(t.Context(), "a", "job@host", time.Minute))
		must(t, j.Beat(t.Context(), "b", "job@other", -time.Minute))
		must(t, j.See(t.Context(), "orders", "a", "job@host", ""))
		must(t, j.See(t.Context(), "orders", "a", "job@host", "refused"))
		all, err := j.ReadSources(t.Context())
		must(t, err)
		if len(all) != 3 || all[0].Job != "a" || !all[0].Alive || all[1].Alive || all[2].DataSource != "orders" || all[2].Reachable || all[2].LastError != "refused" || all[2].Since.IsZero() {
			t.Errorf("got %+v", all)
		}
		must(t, j.See(t.Context(), "orders", "a", "job@host", ""))
		must(t, j.Leave(t.Context(), "b"))
		all, err = j.ReadSources(t.Context())
		must(t, err)
		if len(all) != 2 || !all[1].Reachable || all[1].LastError != "" {
			t.Errorf("got %+v", all)
		}
	})
}

func TestTheAuditIsReadBackwardsPageByPage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		j := logdb.Journal(open(t, db))
		var want []string
		for i := range 5 {
			id := journal.NewID()
			want = append([]string{id}, want...)
			must(t, j.AddAudit(t.Context(), journal.Record{ID: id, Who: "ann", Action: "retry", What: "x", Count: i, Reason: strings.Repeat("é", 5000)}))
		}
		var got []string
		after := ""
		for {
			page, err := j.ReadAudit(t.Context(), after, 2)
			must(t, err)
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				got = append(got, r.ID)
				if len(r.Reason) > journal.MaxReason || r.Who != "ann" || time.Since(r.Time).Abs() > time.Hour {
					t.Errorf("got %+.100v", r)
				}
			}
			after = got[len(got)-1]
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestOldRecordsArePurgedAndNeededOnesStay(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		j, old := logdb.Journal(s), time.Now().Add(-8*24*time.Hour)
		there, gone := unit(), unit()
		must(t, s.Add(t.Context(), time.Minute, there))
		for _, u := range []*entry.Unit{there, gone} {
			must(t, j.AddAttempts(t.Context(), u.ID, []journal.Attempt{{At: old, Err: "old"}, {At: time.Now(), Err: "new"}}))
		}
		j.Tally("orders").Count(journal.AtOnce, 1)
		must(t, j.Flush(t.Context()))
		_, err := j.DB().ExecContext(t.Context(), "INSERT INTO bed_activity (minute, data_source, at_once, sync_retry, async_job, pending, parked, refused) SELECT minute - 691200000, 'old', 1, 0, 0, 0, 0, 0 FROM bed_activity")
		must(t, err)
		must(t, j.Beat(t.Context(), "gone", "gone", -25*time.Hour))
		must(t, j.Beat(t.Context(), "there", "there", time.Hour))
		must(t, j.Purge(t.Context()))
		for u, want := range map[*entry.Unit]int{there: 2, gone: 1} {
			if all, err := j.ReadAttempts(t.Context(), u.ID, 10); err != nil || len(all) != want {
				t.Errorf("%d attempts are left, %v, want %d", len(all), err, want)
			}
		}
		minutes, err := j.ReadActivity(t.Context(), 30*24*time.Hour)
		must(t, err)
		if len(minutes) != 1 || minutes[0].DataSource != "orders" {
			t.Errorf("the minutes are %+v", minutes)
		}
		views, err := j.ReadSources(t.Context())
		must(t, err)
		if len(views) != 1 || views[0].Job != "there" {
			t.Errorf("the jobs are %+v", views)
		}
	})
}

// After a pause, an unusable table is tried again.
func TestATableThatIsMadeLaterIsUsed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db)
		logdb.Journal(s).AskAgainAfter(0)
		pool := db.Open(t)
		_, err := pool.ExecContext(t.Context(), "DROP TABLE bed_data_source")
		must(t, err)
		if err := logdb.Journal(s).Beat(t.Context(), "job", "job", time.Minute); err == nil || logdb.Journal(s).Off()[journal.DataSources] == nil {
			t.Errorf("without its table: %v, off are %v", err, logdb.Journal(s).Off())
		}
		open(t, db) // makes it
		must(t, logdb.Journal(s).Beat(t.Context(), "job", "job", time.Minute))
		if off := logdb.Journal(s).Off(); len(off) > 0 {
			t.Errorf("off are %v", off)
		}
	})
}

// A statement that was on its way when another was refused does not make the table usable:
// the right may be missing for the other one alone.
func TestAnEarlierSuccessForgetsNoRefusal(t *testing.T) {
	t.Parallel()
	j := journal.New(nil, sqltext.MySQL, nil, true)
	denied := &mysql.MySQLError{Number: 1142, Message: "DELETE command denied"}
	must(t, j.Use(journal.Activity, func() error {
		if err := j.Use(journal.Activity, func() error { return denied }); !errors.Is(err, denied) {
			t.Errorf("the refusal is told as %v", err)
		}
		return nil
	}))
	if off := j.Off(); off[journal.Activity] != denied {
		t.Errorf("off are %v", off)
	}
}
