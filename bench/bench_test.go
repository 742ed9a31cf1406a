package bench

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// brief are options for a run without meaningful figures.
func brief() *Options {
	return &Options{
		Callers: []int{2}, Rounds: 1, Turn: 20 * time.Millisecond, WarmUp: time.Millisecond, RoundTrip: time.Millisecond,
		DrainUnits: 120, ParkedFew: 100, ParkedMany: 1000,
	}
}

func newTestSite(t *testing.T, conns int) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs servers")
	}
	s, err := newSite(t.Context(), time.Millisecond, demands{conns: conns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func quietly(string) {}

func TestEachContenderDoesTheWorkThatItSays(t *testing.T) {
	t.Parallel()
	s := newTestSite(t, 300) // each contender keeps its own
	for _, prepared := range []bool{false, true} {
		o := brief()
		o.Prepared = prepared
		o.Scenes = map[bool]string{false: "^2$", true: "^2 1ms$"}[prepared]
		w, err := newWrites(o, s)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(t.Context(), quietly); err != nil {
			t.Fatal(err)
		}
		for _, sc := range o.scenes() {
			for _, c := range contenders() {
				turns := w.turns[sc.name][c.id]
				if len(turns) != 1 || turns[0].writes <= 0 || turns[0].p50 <= 0 {
					t.Errorf("scene %q: %s: %+v", sc.name, c.id, turns)
				}
			}
		}
	}
}

func TestIdleContenderIsDetected(t *testing.T) {
	t.Parallel()
	s := newTestSite(t, 20)
	w, err := newWrites(brief(), s)
	if err != nil {
		t.Fatal(err)
	}
	sc := scene{callers: 2, name: "2"}
	for name, c := range map[string]struct {
		open func(context.Context, *stage) (*setup, error)
		lie  func(operation) operation
	}{
		"a write left out": {bare(testdb.DriverMySQL), func(do operation) operation {
			var n atomic.Int64
			return func(ctx context.Context, row int64) error {
				if n.Add(1) == 2 {
					return nil
				}
				return do(ctx, row)
			}
		}},
		"a write done twice": {bare(testdb.DriverPostgres), func(do operation) operation {
			var n atomic.Int64
			return func(ctx context.Context, row int64) error {
				if n.Add(1) == 2 {
					return errors.Join(do(ctx, row), do(ctx, row))
				}
				return do(ctx, row)
			}
		}},
		"writes that are not logged": {deliver(testdb.DriverMySQL, testdb.DriverSQLite, atLeastOnce), func(do operation) operation {
			return func(ctx context.Context, row int64) error { return do(bedsql.Unlogged(ctx), row) }
		}},
		"no row to write to": {deliver(testdb.DriverPostgres, testdb.DriverSQLite, exactlyOnce), func(do operation) operation {
			return func(ctx context.Context, _ int64) error { return do(ctx, noRow) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			honest, err := c.open(t.Context(), &stage{writes: w, scene: sc, id: name, before: map[string]int64{}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = honest.close() }()
			do, release, err := honest.caller(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			liar := *honest
			liar.caller = each(c.lie(do))
			_, err = liar.run(t.Context(), 2, time.Millisecond, 30*time.Millisecond, processes{}, "")
			if err == nil {
				err = liar.awaitEmpty(t.Context(), true)
			}
			if err == nil {
				err = liar.check(t.Context(), liar.done)
			}
			if err == nil {
				t.Error("nobody noticed")
			}
		})
	}
}

func TestAWriteCountsWhenItsLogIsGone(t *testing.T) {
	t.Parallel()
	const cost = 100 * time.Microsecond
	var left atomic.Int64
	removing := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-removing:
				return
			default:
				if left.Load() > 0 {
					time.Sleep(cost)
					left.Add(-1)
				}
			}
		}
	}()
	defer func() {
		close(removing)
		<-stopped
	}()
	s := &setup{
		caller: each(func(context.Context, int64) error {
			left.Add(1)
			time.Sleep(cost / 10)
			return nil
		}),
		outstanding: func(context.Context) (int64, int64, error) { return left.Load(), 0, nil },
	}
	got, err := s.run(t.Context(), 4, time.Millisecond, 100*time.Millisecond, processes{}, "")
	if err != nil {
		t.Fatal(err)
	}
	if most := 1 / cost.Seconds(); got.perSecond > most {
		t.Errorf("%.0f writes a second of %d that returned, although only %.0f logs a second can be removed", got.perSecond, got.writes, most)
	}
}

func TestContendersUseTheirLogsAndReceipts(t *testing.T) {
	t.Parallel()
	crowd := scene{callers: 16}
	watched := func(context.Context) (int64, int64, error) { return 0, 0, nil }
	for name, c := range map[string]struct {
		s    setup
		want bool
	}{
		"nothing was promised": {setup{}, true},
		"no log":               {setup{outstanding: watched}, false},
		"a log":                {setup{outstanding: watched, sawLogs: true}, true},
		"no receipt":           {setup{outstanding: watched, sawLogs: true, receipts: true}, false},
		"a receipt":            {setup{outstanding: watched, sawLogs: true, receipts: true, sawReceipts: true}, true},
	} {
		if err := c.s.used(crowd); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDrainersDoEachUnitOnce(t *testing.T) {
	t.Parallel()
	d := &drain{opts: brief(), site: newTestSite(t, 20)}
	d.conns = 4
	if err := d.run(t.Context(), quietly); err != nil {
		t.Fatal(err)
	}
	for driver, rates := range d.rates {
		for _, id := range []string{"bare", "job", "job-defaults", "job-eo"} {
			if len(rates[id]) != 1 || rates[id][0] <= 0 {
				t.Errorf("%s on %s: %v", id, driver, rates[id])
			}
		}
	}
}

func TestClaimsAreMeasuredBesideStatedParkedRows(t *testing.T) {
	t.Parallel()
	c := &claims{opts: brief(), site: newTestSite(t, 20)}
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		h, err := c.heap(t.Context(), driver, 1000)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.storage.Close() }()
		if ms, _, err := h.claim(t.Context()); err != nil || ms <= 0 {
			t.Errorf("%s: a claim took %v ms, %v", driver, ms, err)
		}
		stats, err := h.storage.Stats(t.Context())
		if err != nil || len(stats) != 1 || stats[0].Parked != 1000 || stats[0].Waiting != 0 || stats[0].Leased != 0 {
			t.Errorf("%s: behind a claim the log holds %+v, %v", driver, stats, err)
		}
	}
}

func TestPassThroughIsMeasuredAgainstTheBareDriver(t *testing.T) {
	t.Parallel()
	s := &selects{opts: brief()}
	if err := s.run(quietly); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bare", "bed"} {
		if s.nanoseconds[name].median() <= 0 || s.allocations[name].median() < 1 {
			t.Errorf("%s: %v ns, %v allocations", name, s.nanoseconds[name], s.allocations[name])
		}
	}
	if more := s.moreNanoseconds["bare"]; more.median() != 0 {
		t.Errorf("the bare driver takes %v ns more than itself", more)
	}
	if more := s.moreNanoseconds["bed"]; len(more) != len(s.nanoseconds["bed"]) || more.median() == 0 {
		t.Errorf("the wrapper takes %v ns more than the bare driver", more)
	}
}

func TestBareDriverTurnsSurroundTheOthers(t *testing.T) {
	t.Parallel()
	var chosen []contender
	for _, c := range contenders() {
		if slices.Contains([]string{onMariaDB, "xa-mariadb", "eo-mariadb-log-sqlite", onPostgres, onTwo, "staged-eo"}, c.id) {
			chosen = append(chosen, c)
		}
	}
	var got []string
	for _, i := range inRound(chosen) {
		got = append(got, chosen[i].id)
	}
	if want := []string{onMariaDB, "xa-mariadb", "eo-mariadb-log-sqlite", onMariaDB, onPostgres, onTwo, "staged-eo", onTwo}; !slices.Equal(got, want) {
		t.Errorf("the order of a round is %v, want %v", got, want)
	}
	sum := turn{perSecond: 10, p50: 4, writes: 1, cpu: spent{here: 1}}.and(turn{perSecond: 20, p50: 8, writes: 2, cpu: spent{mysql: 3}})
	if want := (turn{perSecond: 15, p50: 6, writes: 3, cpu: spent{here: 1, mysql: 3}}); sum != want {
		t.Errorf("the mean of two turns is %+v, want %+v", sum, want)
	}
}

// Programs read these names.
func TestEachTargetFigureHasItsName(t *testing.T) {
	t.Parallel()
	one := series{1}
	many := map[string]series{"bare": one, "job": one, "bed": one, "river": one}
	both := map[string]map[string]series{testdb.DriverMySQL: many, testdb.DriverPostgres: {"bare": one, "job": {2}, "river": one}}
	r := &results{
		opts:    &Options{RoundTrip: time.Millisecond, Queues: []Queue{{Name: "river"}}},
		writes:  &writes{turns: map[string]map[string][]turn{}},
		drain:   &drain{rates: both},
		claims:  &claims{few: map[string]series{testdb.DriverMySQL: one, testdb.DriverPostgres: one}, many: map[string]series{testdb.DriverMySQL: one, testdb.DriverPostgres: one}},
		selects: &selects{moreNanoseconds: map[string]series{"bed": {17}}, moreAllocations: map[string]series{"bed": {0}}},
	}
	delete(many, "river")
	for _, sc := range []string{"1", "8", "64", "64 1ms", "16 1ms", "1 1ms"} {
		r.writes.turns[sc] = map[string][]turn{}
		for _, c := range contenders() {
			r.writes.turns[sc][c.id] = []turn{{perSecond: 1, p50: 1}}
		}
	}
	const want = "alo_mariadb_64_behind=1.00 alo_mariadb_64_before=1.00 alo_mariadb_64_1ms_behind=1.00 alo_sqlite_64_behind=1.00 " +
		"alo_mariadb_1_1ms_behind_p50=1.00 eo_mariadb_64=1.00 eo_postgres_64=1.00 eo_mariadb_1_1ms_p50=1.00 eo_postgres_1_1ms_p50=1.00 " +
		"staged_eo_1_1ms_p50=1.00 staged_eo_64=1.00 staged_eo_64_over_xa=1.00 with_eo_1=1.00 with_eo_8=1.00 with_eo_64=1.00 with_eo_1_1ms_p50=1.00 order_eo_64=1.00 http_key_1=1.00 http_key_64=1.00 " +
		"call_1=1.00 call_64=1.00 call_unlogged_1=1.00 call_unlogged_64=1.00 " +
		"counted_mariadb_64=1.00 counted_postgres_64=1.00 " +
		"onfailure_alo_1_1ms=1.00 onfailure_alo_64=1.00 onfailure_eo_1_1ms_p50=1.00 onfailure_eo_mariadb_64=1.00 onfailure_eo_postgres_64=1.00 " +
		"alongside_1_1ms_p50=1.00 alongside_1_1ms=1.00 alongside_16_1ms=1.00 alongside_64_1ms=1.00 " +
		"alongside_tx_1_1ms_p50=1.00 onfailure_tx_1_1ms_p50=1.00 drain_mariadb=1.00 drain_postgres=2.00 " +
		"drain_postgres_over_river=2.00 claim_parked_mariadb=1.00 claim_parked_postgres=1.00 select_more_ns=17.00 select_more_allocations=0.00"
	if got := line(r.figures()); got != want {
		t.Errorf("the line for machines is\n%s\nwant\n%s", got, want)
	}
}

func TestAFigureIsTheMedianOfItsRounds(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]series{
		"":                 nil,
		"2.00 (1.00–9.00)": {9, 1, 2},
		"2.50 (1.00–9.00)": {9, 1, 2, 3},
	} {
		if got := s.String(); got != want {
			t.Errorf("%v is printed as %q, want %q", []float64(s), got, want)
		}
	}
	if got := (series{4, 9}).over(series{2, 3}).String(); got != "2.50 (2.00–3.00)" {
		t.Errorf("rounds are compared as %q", got)
	}
}
