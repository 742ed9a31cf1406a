package txlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// keyed makes units under an order key.
func keyed(n int, key string) []*Unit {
	units := make([]*Unit, n)
	for i := range units {
		id := entry.NewID()
		units[i] = &Unit{ID: id, Receipt: id, DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}, Order: []entry.Order{{Key: entry.OrderPrefix + key}}}
	}
	return units
}

func addKeyed(t *testing.T, s *SQLStorage, units ...*Unit) {
	t.Helper()
	if err := s.Add(t.Context(), time.Hour, units...); err != nil {
		t.Fatal(err)
	}
}

func openLog(t *testing.T, driver, dsn string) *SQLStorage {
	t.Helper()
	s, err := Open(t.Context(), driver, dsn, WithMaxConns(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// claimReads returns the reads of the claim's statement: rows on MariaDB, pages on PostgreSQL, and
// SQLite's way of finding rows.
func claimReads(t *testing.T, pool *sql.DB, f sqltext.Flavor) (n int, by string) {
	t.Helper()
	args := []any{"orders", int64(0), int64(0), "", int64(1) << 60, int64(0), 10}
	if f == sqltext.SQLite {
		_, by, _ = strings.Cut(plan(t, pool, f, shape{kind: selectDue}, args...), "detail=")
		return 0, by
	}
	analyze, number := "ANALYZE FORMAT=JSON ", regexp.MustCompile(`"r_rows": (\d+)`)
	if f == sqltext.Postgres {
		analyze, number = "EXPLAIN (ANALYZE, BUFFERS) ", regexp.MustCompile(`Buffers: shared hit=(\d+)`)
	}
	for range 2 { // the second time all of it is in memory
		rows, err := pool.QueryContext(t.Context(), analyze+shape{kind: selectDue}.text(f), args...)
		if err != nil {
			t.Fatal(err)
		}
		text, line := "", ""
		for rows.Next() {
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			text += line + "\n"
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		found := number.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("the plan does not tell what was read:\n%s", text)
		}
		if n, err = strconv.Atoi(found[1]); err != nil {
			t.Fatal(err)
		}
	}
	return n, ""
}

func TestClaimReadsNothingOfAThousandEntriesThatWaitInOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, pool := openLog(t, db.Driver, db.DSN), db.Open(t)
		f := s.db.backend.Flavor
		look := func() (int, string) {
			if _, err := pool.Exec(f.Pick(sqltext.Texts{MySQL: "ANALYZE TABLE transaction_log", Postgres: "ANALYZE transaction_log", SQLite: "ANALYZE"})); err != nil {
				t.Fatal(err)
			}
			return claimReads(t, pool, f)
		}
		due := &Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
		addKeyed(t, s, due)
		if err := s.Release(t.Context(), due, entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		for range 3 { // so that the index is more than a page in both cases
			addKeyed(t, s, plain(500)...)
		}
		before, planned := look()
		for key := range 10 {
			addKeyed(t, s, keyed(101, fmt.Sprint("k", key))...)
		}
		var waiting int
		if err := pool.QueryRow("SELECT COUNT(*) FROM bed_order_queue").Scan(&waiting); err != nil || waiting != 1000 {
			t.Fatalf("%d entries wait, %v", waiting, err)
		}
		after, plannedAfter := look()
		t.Logf("read before %d, beside a thousand that wait %d", before, after)
		if after > before+3 || f != sqltext.SQLite && before == 0 || plannedAfter != planned ||
			f == sqltext.SQLite && !strings.Contains(planned, "transaction_log_due (parked=? AND data_source=? AND next_try_time>? AND next_try_time<?)") {
			t.Errorf("a claim reads %d (%s), beside a thousand entries that wait %d (%s)", before, planned, after, plannedAfter)
		}
		if got := claimSome(t, s, 100); len(got) != 1 || got[0].ID != due.ID {
			t.Errorf("it claims %d", len(got))
		}
	})
}

// plain makes units under no key.
func plain(n int) []*Unit {
	units := keyed(n, "")
	for _, u := range units {
		u.Order = nil
	}
	return units
}

// Idle keys are purged. Keys with an entry stay, even with a skipped one, because the fence in the
// target must stay for it.
func TestIdleOrderKeysArePurgedAndGoOnBeyondTheirNumbers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, pool := openLog(t, db.Driver, db.DSN), db.Open(t)
		idle, busy, skipped, fresh := keyed(1, "idle")[0], keyed(1, "busy")[0], keyed(1, "skipped")[0], keyed(1, "fresh")[0]
		addKeyed(t, s, idle, busy, skipped)
		if err := s.Release(t.Context(), skipped, entry.Verdict{}); err != nil {
			t.Fatal(err)
		}
		if _, err := logdb.Of(s).Decide(t.Context(), entry.DecideSkip, []string{skipped.ID}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), idle); err != nil {
			t.Fatal(err)
		}
		const keep = time.Hour
		if _, err := pool.Exec("UPDATE bed_order_key SET last = last - " + fmt.Sprint(2*keep.Microseconds())); err != nil {
			t.Fatal(err)
		}
		addKeyed(t, s, fresh)
		if err := s.Remove(t.Context(), fresh); err != nil {
			t.Fatal(err)
		}
		keys := []string{entry.OrderPrefix + "busy", entry.OrderPrefix + "fresh", entry.OrderPrefix + "idle", entry.OrderPrefix + "skipped"}
		there := func(want ...string) {
			t.Helper()
			for _, key := range keys {
				var n int
				if err := pool.QueryRow("SELECT COUNT(*) FROM bed_order_key WHERE id = '" + key + "'").Scan(&n); err != nil {
					t.Fatal(err)
				}
				if wanted := strings.Contains(strings.Join(want, " "), strings.TrimPrefix(key, entry.OrderPrefix)); wanted != (n == 1) {
					t.Errorf("%s is there: %v, want %v", key, n == 1, wanted)
				}
			}
		}
		if next, n, err := logdb.Of(s).PurgeOrder(t.Context(), 3*keep, ""); next != "" || n != 0 || err != nil {
			t.Errorf("before its time: %q, %d, %v", next, n, err)
		}
		there("idle", "busy", "skipped", "fresh")
		if next, n, err := logdb.Of(s).PurgeOrder(t.Context(), keep, ""); next != "" || n != 1 || err != nil {
			t.Errorf("got %q, %d, %v", next, n, err)
		}
		there("busy", "skipped", "fresh")
		if missing, err := s.Missing(t.Context(), keys); err != nil || strings.Join(missing, " ") != keys[1]+" "+keys[2] {
			t.Errorf("the target may forget %v, %v", missing, err)
		}
		again := keyed(1, "idle")[0]
		addKeyed(t, s, again)
		if again.Order[0].Number <= idle.Order[0].Number {
			t.Errorf("number %d after %d", again.Order[0].Number, idle.Order[0].Number)
		}
		if err := s.Discard(t.Context(), skipped.ID); err != nil {
			t.Fatal(err)
		}
		if _, n, err := logdb.Of(s).PurgeOrder(t.Context(), keep, ""); n != 1 || err != nil {
			t.Errorf("a key whose skipped entry is gone: %d, %v", n, err)
		}
		there("idle", "busy", "fresh")
		// While the row is there the clock does not matter.
		if _, err := pool.Exec("UPDATE bed_order_key SET last = last + " + fmt.Sprint(keep.Microseconds()) + " WHERE id = '" + keys[1] + "'"); err != nil {
			t.Fatal(err)
		}
		late := keyed(1, "fresh")[0]
		addKeyed(t, s, late)
		if want := fresh.Order[0].Number + keep.Microseconds() + 1; late.Order[0].Number != want {
			t.Errorf("after the clock was set back it is number %d, want %d", late.Order[0].Number, want)
		}
	})
}

// The clock of a session can be set on MariaDB and MySQL.
func TestPurgedOrderKeyGoesOnBeyondItsNumberAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	const keep = time.Hour
	at := func(clock time.Time) *SQLStorage {
		sep := map[bool]string{true: "&", false: "?"}[strings.Contains(db.DSN, "?")]
		return openLog(t, db.Driver, db.DSN+sep+"timestamp="+fmt.Sprint(clock.Unix()))
	}
	now := time.Now()
	u := keyed(1, "k")[0]
	first := at(now)
	addKeyed(t, first, u)
	if err := first.Remove(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if _, n, err := logdb.Of(at(now.Add(keep))).PurgeOrder(t.Context(), keep, ""); n != 0 || err != nil {
		t.Fatalf("when its retention just ends: %d, %v", n, err)
	}
	if _, n, err := logdb.Of(at(now.Add(keep+time.Second))).PurgeOrder(t.Context(), keep, ""); n != 1 || err != nil {
		t.Fatalf("after its retention: %d, %v", n, err)
	}
	again := keyed(1, "k")[0]
	addKeyed(t, at(now.Add(time.Second)), again) // the clock was set back by the retention
	if again.Order[0].Number <= u.Order[0].Number {
		t.Errorf("number %d after %d", again.Order[0].Number, u.Order[0].Number)
	}
}

func TestUnansweredKeyedWriteIsOneEntryOfOneNumber(t *testing.T) {
	t.Parallel()
	for _, of := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := of(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, db.Addr())
			s, pool := openLog(t, db.Driver, db.Via(p.Addr()).DSN), db.Open(t)
			addKeyed(t, s, keyed(1, "other")...)
			one := func(cut func(func([]byte) bool) <-chan struct{}, head *Unit) *Unit {
				t.Helper()
				u := keyed(1, "k")[0]
				struck := cut(testproxy.Commit)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := s.Add(ctx, time.Hour, u); err != nil {
					t.Fatal(err)
				}
				testproxy.Await(t, struck)
				wantHead, wantWaiting := u, 0
				if head != nil {
					wantHead, wantWaiting = head, 1
				}
				if (u.Behind != "") != (head != nil) || head != nil && u.Behind != head.ID {
					t.Errorf("it is behind %q", u.Behind)
				}
				var last int64
				var id string
				var waiting, rows, queued int
				if err := pool.QueryRow("SELECT last, head, waiting FROM bed_order_key WHERE id = '"+entry.OrderPrefix+"k'").Scan(&last, &id, &waiting); err != nil {
					t.Fatal(err)
				}
				if err := pool.QueryRow("SELECT (SELECT COUNT(*) FROM transaction_log WHERE id = '"+u.ID+"'), (SELECT COUNT(*) FROM bed_order_queue)").Scan(&rows, &queued); err != nil {
					t.Fatal(err)
				}
				got, err := s.Get(t.Context(), u.ID)
				if err != nil {
					t.Fatal(err)
				}
				if last != u.Order[0].Number || id != wantHead.ID || waiting != wantWaiting || queued != wantWaiting || rows != 1 || got.Order[0].Number != last || got.Behind != u.Behind {
					t.Errorf("number %d of last %d, head %s, %d waiting, %d in the queue, %d rows, read %+v", u.Order[0].Number, last, id, waiting, queued, rows, got)
				}
				return u
			}
			for _, cut := range []func(func([]byte) bool) <-chan struct{}{p.CutAfter, p.CutBefore} {
				head := one(cut, nil)
				after := one(cut, head)
				if after.Order[0].Number <= head.Order[0].Number {
					t.Errorf("number %d after %d", after.Order[0].Number, head.Order[0].Number)
				}
				if err := s.Remove(t.Context(), head, after); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
