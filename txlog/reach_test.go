package txlog

import (
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
)

// reached opens a log with that many units, each due a millisecond after the previous one, and
// claims the first as after many claims.
func reached(t *testing.T, db testdb.DB, units, claims int) (*SQLStorage, *sql.DB) {
	t.Helper()
	s, err := Open(t.Context(), db.Driver, db.DSN, WithMaxConns(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	pool := db.Open(t)
	for done := 0; done < units; {
		portion := make([]*Unit, min(500, units-done))
		for i := range portion {
			portion[i] = &Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: fmt.Sprint("UPDATE ", done+i)}}}
		}
		if err := s.Add(t.Context(), time.Minute, portion...); err != nil {
			t.Fatal(err)
		}
		done += len(portion)
	}
	quoted := s.db.backend.Flavor.Text("{sql}")
	number := s.db.backend.Flavor.Pick(sqltext.Texts{MySQL: "CAST(SUBSTR(" + quoted + ", 8) AS SIGNED)", Postgres: "CAST(SUBSTR(" + quoted + ", 8) AS BIGINT)", SQLite: "CAST(SUBSTR(" + quoted + ", 8) AS INTEGER)"})
	if _, err := pool.Exec("UPDATE transaction_log SET lease_token = NULL, next_try_time = creation_time - 3600000 + " + number); err != nil {
		t.Fatal(err)
	}
	for range claims {
		r := s.claimer.reach("orders")
		r.claimed, r.whole = manyClaimed, time.Now().Add(time.Hour)
		if got := claimSome(t, s, 100); len(got) != 100 {
			t.Fatalf("%d units were claimed, not 100", len(got))
		}
	}
	return s, pool
}

func claimSome(t *testing.T, s *SQLStorage, limit int) []*Unit {
	t.Helper()
	units, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: limit, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return units
}

// A long snapshot in the log's database keeps the index entries of all units claimed since. A claim
// that started with these would get slower with each claim.
func TestClaimSkipsClaimedRowsUnderAHeldSnapshot(t *testing.T) {
	t.Parallel()
	for _, server := range []struct {
		of    func(testing.TB) testdb.DB
		begin []string
		plan  string
		pages *regexp.Regexp
	}{
		{testdb.MySQL, []string{"START TRANSACTION WITH CONSISTENT SNAPSHOT"}, "ANALYZE FORMAT=JSON ", regexp.MustCompile(`"pages_accessed": (\d+)`)},
		{testdb.Postgres, []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT COUNT(*) FROM bed_log"}, "EXPLAIN (ANALYZE, BUFFERS) ", regexp.MustCompile(`Buffers: shared hit=(\d+)`)},
	} {
		db := server.of(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			snapshot, err := db.Open(t).Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = snapshot.Close() })
			s, pool := reached(t, db, 2600, 0)
			for _, statement := range server.begin {
				if _, err := snapshot.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			for range 24 {
				r := s.claimer.reach("orders")
				r.claimed, r.whole = manyClaimed, time.Now().Add(time.Hour)
				if err := s.Remove(t.Context(), claimSome(t, s, 100)...); err != nil {
					t.Fatal(err)
				}
			}
			pages := func(from int64) int {
				rows, err := pool.Query(server.plan+shape{kind: selectDue}.text(s.db.backend.Flavor), "orders", from, from, "", int64(1)<<60, 0, 1)
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				var text strings.Builder
				for rows.Next() {
					var line string
					if err := rows.Scan(&line); err != nil {
						t.Fatal(err)
					}
					text.WriteString(line + "\n")
				}
				found := server.pages.FindStringSubmatch(text.String())
				if found == nil {
					t.Fatalf("the plan tells no pages:\n%s", text.String())
				}
				n, err := strconv.Atoi(found[1])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			whole, next := pages(atOnce), pages(s.claimer.reach("orders").begin(time.Now()))
			t.Logf("pages read from the beginning %d, by the next claim %d", whole, next)
			if next*2 > whole {
				t.Errorf("the next claim reads %d pages, one from the beginning of the index %d: it reads again what was claimed", next, whole)
			}
			if got := claimSome(t, s, 500); len(got) != 200 {
				t.Errorf("%d units were left to claim, not 200", len(got))
			}
		})
	}
}

func TestRowBeforeTheClaimPositionIsClaimed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, pool := reached(t, db, 400, 2)
		r := s.claimer.reach("orders")
		left, err := s.List(t.Context(), Filter{})
		if err != nil {
			t.Fatal(err)
		}
		atOnceID, late := left[350].ID, left[399].ID

		if err := s.Retry(t.Context(), atOnceID); err != nil {
			t.Fatal(err)
		}
		if got := claimSome(t, s, 1); len(got) != 1 || got[0].ID != atOnceID {
			t.Errorf("an operator's retry is not claimed first but %v", got)
		}

		if _, err := pool.Exec("UPDATE transaction_log SET next_try_time = 5 WHERE id = '" + late + "'"); err != nil {
			t.Fatal(err)
		}
		// The look from the beginning is due.
		r.whole = time.Now()
		if got := claimSome(t, s, 1); len(got) != 1 || got[0].ID != late {
			t.Errorf("what is in front of all others is not claimed first but %v", got)
		}
		if got := claimSome(t, s, 400); len(got) != 198 {
			t.Errorf("%d units were left to claim, not 198", len(got))
		}
	})
}

func TestDataSourcesAreNamedPastWhatWasClaimed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, pool := reached(t, db, 300, 2)
		named := func(want ...string) {
			t.Helper()
			got, err := s.DataSources(t.Context())
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("the data sources are %q, %v, want %q", got, err, want)
			}
		}
		named("orders")
		for _, name := range []string{"accounts", "orders2", "z"} {
			if err := s.Add(t.Context(), time.Minute, &Unit{ID: entry.NewID(), DataSource: name, Statements: []entry.Statement{{SQL: "UPDATE a"}}}); err != nil {
				t.Fatal(err)
			}
		}
		named("accounts", "orders", "orders2", "z")
		parked := func(n int) {
			t.Helper()
			if _, err := pool.Exec(fmt.Sprintf("UPDATE transaction_log SET parked = %d WHERE data_source = 'orders'", n)); err != nil {
				t.Fatal(err)
			}
		}
		parked(1)
		named("accounts", "orders2", "z")
		left, err := s.List(t.Context(), Filter{DataSource: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Retry(t.Context(), left[len(left)-1].ID); err != nil { // nobody has it
			t.Fatal(err)
		}
		named("accounts", "orders", "orders2", "z")
	})
}

func TestATimeBeforeAllOthersIsDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, pool := reached(t, db, 2, 0)
		if _, err := pool.Exec("UPDATE transaction_log SET next_try_time = -144000000"); err != nil {
			t.Fatal(err)
		}
		if got := claimSome(t, s, 10); len(got) != 2 {
			t.Errorf("%d units were claimed, not 2", len(got))
		}
	})
}

func TestReachStopsAtSettledRows(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		looks []look
		from  int64
	}{
		"a claim that found all it wanted":         {[]look{{took: 1, full: true, last: 100, settled: 500}}, 100},
		"with units too young behind it":           {[]look{{took: 1, full: true, last: 600, settled: 500}}, 500},
		"a claim that found less":                  {[]look{{took: 1, last: 100, settled: 500}}, 500},
		"then one that found nothing":              {[]look{{took: 1, last: 100, settled: 500}, {from: 500, took: 1}}, 500},
		"then one that found only what is at once": {[]look{{took: 1, last: 100, settled: 500}, {}}, 500},
		"after the clock was set back":             {[]look{{took: 1, full: true, last: 400, settled: 500}, {took: 1, full: true, last: 90, settled: 200}}, 90},
	} {
		r := &reach{claimed: manyClaimed}
		for _, l := range c.looks {
			if l.took > 0 {
				l.took = time.Second
			}
			r.end(l, 1, now)
		}
		if got := r.begin(now); got != c.from {
			t.Errorf("%s: the next claim begins at %d, not %d", name, got, c.from)
		}
		if got := r.begin(now.Add(lookEvery)); got != atOnce {
			t.Errorf("%s: a minute later a claim still begins at %d", name, got)
		}
	}
}

// During a snapshot, a look from the beginning reads everything claimed since. Such looks must be
// too rare to show in the slowest hundredth of the claims of a steady flow: 800 units a second for
// ten minutes.
func TestSlowLooksAreRareAmongClaims(t *testing.T) {
	t.Parallel()
	const (
		each       = 100
		everyClaim = time.Second * each / 800
		perUnit    = 500 * time.Nanosecond // what a look takes for each that was claimed
	)
	var r reach
	start := time.UnixMilli(1_000_000)
	claims, slow := 0, 0
	for now := start; now.Sub(start) < 10*time.Minute; now = now.Add(everyClaim) {
		l := look{from: r.begin(now), took: time.Millisecond, full: true, last: now.UnixMilli(), settled: now.UnixMilli()}
		if l.from == atOnce {
			l.took += time.Duration(claims*each) * perUnit
		}
		if l.took > 2*quickLook {
			slow++
		}
		r.end(l, each, now)
		claims++
	}
	if slow == 0 || slow*100 >= claims {
		t.Errorf("%d of %d claims looked from the beginning for long", slow, claims)
	}
}
