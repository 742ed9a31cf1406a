package soak

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestMain(m *testing.M) {
	_ = gomysql.SetLogger(new(gomysql.NopLogger))
	if os.Getenv(appEnv) != "" {
		os.Exit(appMain())
	}
	goleak.VerifyTestMain(leaks.Patient(m))
}

// options of a run with one kind of log.
type options struct {
	seed     uint64
	duration time.Duration
	dir      string
	// apps and bedJobs are the programs, of one release and of the next.
	apps, bedJobs []string
	guarantee     bedsql.Guarantee
	trace         io.Writer // of the faults
	// private gives a run its own servers, with faults.
	private bool
	// serializable: the targets' accounts write SERIALIZABLE, a quarter of the writes to
	// accounts touches one row, and one try parks a unit. The faults are those that no try
	// is counted for.
	serializable bool
	pause        time.Duration // of a worker between two requests, on average
	between      time.Duration // two faults, on average
	longest      time.Duration // a fault
	lease        time.Duration
	// retention is longer than anything is held up.
	retention, purge time.Duration
}

func fromEnv(t *testing.T) (o options, long bool) {
	o = options{
		seed: rand.Uint64(), duration: 8 * time.Second, pause: 100 * time.Millisecond, between: 150 * time.Millisecond,
		longest: 2 * time.Second, lease: time.Second, retention: time.Hour, purge: time.Hour,
	}
	var err error
	if text := os.Getenv("BED_SOAK_SEED"); text != "" {
		if o.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BED_SOAK_SEED: %v", err)
		}
	}
	if long = os.Getenv("BED_SOAK_DURATION") != ""; long {
		o.private, o.between, o.longest, o.lease = true, 600*time.Millisecond, 5*time.Second, 2*time.Second
		o.retention, o.purge = 25*time.Second, 5*time.Second
	}
	for name, d := range map[string]*time.Duration{"BED_SOAK_DURATION": &o.duration, "BED_SOAK_PAUSE": &o.pause, "BED_SOAK_BETWEEN": &o.between} {
		if *d, err = durationOr(*d, os.Getenv(name)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if o.dir = os.Getenv("BED_SOAK_DIR"); o.dir == "" {
		o.dir = t.TempDir()
	}
	o.guarantee = bedsql.ExactlyOnce
	o.build(t, long)
	return o, long
}

// durationOr reads a duration; an empty text means the usual one.
func durationOr(usual time.Duration, text string) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond {
		return 0, fmt.Errorf("%q is not a duration of at least 1ms, such as 20ms or 1m30s", text)
	}
	return d, nil
}

// serializable, in place of a kind of log, is the run with contention; see options.
const serializable = "serializable"

func TestAnswersAreTrueUnderFaultsOfEveryKind(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: needs servers")
	}
	o, long := fromEnv(t)
	logs := []string{testdb.DriverSQLite}
	if long {
		logs = []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite, serializable}
	}
	if only := os.Getenv("BED_SOAK_LOG"); only != "" {
		logs = []string{only}
	}
	o.duration /= time.Duration(len(logs))
	for _, log := range logs {
		o, name := o, "log in "+log
		if o.serializable = log == serializable; o.serializable {
			log, name, o.pause = testdb.DriverPostgres, log, o.pause/4
		}
		t.Run(name, func(t *testing.T) { soak(t, o, log, long) })
	}
}

func soak(t *testing.T, o options, log string, long bool) {
	t.Logf("seed %d, log in %s, faults for %v", o.seed, log, o.duration)
	w := newWorld(t, o, log)
	if long {
		f, err := os.Create(filepath.Join(w.dir, "faults.txt"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		w.o.trace = f
	}
	for i := range w.jobs {
		w.startJob(i)
	}
	for i := range w.apps {
		w.startApp(i)
	}
	w.until("all write", 2*time.Minute, w.targets[bankM], fmt.Sprintf("SELECT COUNT(DISTINCT SUBSTR(request, 1, 9)) < %d FROM effect WHERE request LIKE 'req-app%%'", applications))
	w.use("at first", false, []*process{w.apps[0], w.jobs[0]})
	n := &nemesis{world: w, rng: rand.New(rand.NewPCG(o.seed, uint64(len(log)))), counts: map[string]int{}, busy: map[any]bool{}}
	n.rage(time.Now().Add(o.duration))
	n.settle()
	w.use("at the end of the faults", false, append(w.apps[:], w.jobs[:]...))
	w.rest()
	if long {
		t.Parallel() // the jobs go on, beside the next kind of log
	}
	w.quiet()
	h := w.history()
	w.tell(h, n.counts)
	found, judged := h.judge()
	t.Logf("%d operations on %d registers are judged by their order", judged.Operations, judged.Registers)
	for i, f := range found {
		if i == 50 {
			t.Errorf("and more")
			break
		}
		t.Error(f)
	}
	if !t.Failed() {
		w.tryJudge(long)
	}
}

// until asks until the answer is 0. After the time limit, the judge finds the rest.
func (w *world) until(what string, patience time.Duration, d *database, query string) {
	w.t.Helper()
	begun, n := time.Now(), -1
	for time.Since(begun) < patience {
		if err := d.direct.QueryRowContext(w.t.Context(), query).Scan(&n); err == nil && n == 0 {
			w.t.Logf("%s after %v", what, time.Since(begun).Round(100*time.Millisecond))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Errorf("waited %v until %s: %d are left", patience, what, n)
}

// history reads all there is to judge.
func (w *world) history() *History {
	w.t.Helper()
	h := &History{Targets: map[string]Target{}}
	var err error
	if h.Lines, err = ReadJournals(w.dir); err != nil {
		w.t.Fatal(err)
	}
	for name, d := range w.targets {
		t := Target{Balances: map[int64]int64{}, Registers: map[int64]int64{}}
		w.rows(d, "SELECT id, request, account, n FROM effect", func(scan func(...any) error) error {
			var e Effect
			err := scan(&e.ID, &e.Name, &e.Account, &e.N)
			t.Effects = append(t.Effects, e)
			return err
		})
		w.rows(d, "SELECT id, balance FROM account", func(scan func(...any) error) error {
			var id, balance int64
			err := scan(&id, &balance)
			t.Balances[id] = balance
			return err
		})
		w.rows(d, "SELECT id, value FROM register", func(scan func(...any) error) error {
			var id, value int64
			err := scan(&id, &value)
			t.Registers[id] = value
			return err
		})
		if w.o.retention < time.Hour {
			w.rows(d, "SELECT unit_id FROM bed_receipt WHERE fingerprint IS NULL", func(scan func(...any) error) error {
				var unit string
				err := scan(&unit)
				t.Receipts = append(t.Receipts, unit)
				return err
			})
		}
		h.Targets[name] = t
	}
	w.rows(w.log, "SELECT id, request, account, n FROM effect", func(scan func(...any) error) error {
		var e Effect
		err := scan(&e.ID, &e.Name, &e.Account, &e.N)
		t := h.Targets[home]
		t.Effects = append(t.Effects, e)
		h.Targets[home] = t
		return err
	})
	w.rows(w.log, "SELECT id, parked, parameters, COALESCE(last_error, '') FROM transaction_log", func(scan func(...any) error) error {
		var e Entry
		var parked int
		err := scan(&e.ID, &parked, &e.Text, &e.LastError)
		e.Parked = parked != 0
		h.Log = append(h.Log, e)
		return err
	})
	return h
}

func (w *world) rows(d *database, query string, read func(scan func(...any) error) error) {
	w.t.Helper()
	// Connections of before a fault may be dead.
	ctx := context.WithoutCancel(w.t.Context())
	var rows *sql.Rows
	var err error
	for range 2 * testdb.MaxOpenConns {
		if rows, err = d.direct.QueryContext(ctx, query); err == nil {
			break
		}
	}
	if err != nil {
		w.t.Fatalf("%s: %s: %v", d.name, query, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := read(rows.Scan); err != nil {
			w.t.Fatalf("%s: %s: %v", d.name, query, err)
		}
	}
	if err := rows.Err(); err != nil {
		w.t.Fatalf("%s: %s: %v", d.name, query, err)
	}
}

// tell logs the figures of a run.
func (w *world) tell(h *History, struck map[string]int) {
	kinds, parked := map[string]map[Outcome]int{}, 0
	outcomes, answered := map[string][]Outcome{}, map[string]bool{}
	sends, acknowledged, replayed := 0, 0, 0
	for _, l := range h.Lines {
		if l.Event == EventAnswer {
			outcomes[l.Send], answered[l.Send] = l.Outcomes, true
			if l.Replayed {
				replayed += len(l.Outcomes)
			}
		}
	}
	for _, l := range h.Lines {
		if l.Event != EventSend {
			continue
		}
		sends++
		for i, o := range outcomes[l.Send] {
			if l.Steps[i].Op != OpRead && (o == Delivered || o == Pending) {
				acknowledged++
			}
		}
		if kinds[l.Kind] == nil {
			kinds[l.Kind] = map[Outcome]int{}
		}
		told := Outcome("no answer")
		if answered[l.Send] {
			told = outcomes[l.Send][0]
			if slices.ContainsFunc(outcomes[l.Send], func(o Outcome) bool { return o != told }) {
				told = "mixed"
			}
		}
		kinds[l.Kind][told]++
	}
	for _, e := range h.Log {
		if e.Parked {
			parked++
		}
	}
	var b strings.Builder
	total := 0
	for _, name := range slices.Sorted(maps.Keys(struck)) {
		total += struck[name]
		fmt.Fprintf(&b, "  %5d  %s\n", struck[name], name)
	}
	fmt.Fprintf(&b, "%d faults\n", total)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(&b, "  %s:", kind)
		for _, o := range slices.Sorted(maps.Keys(kinds[kind])) {
			fmt.Fprintf(&b, " %d %s,", kinds[kind][o], o)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d sends, %d writes acknowledged, %d of them as those of an earlier send, %d records parked\n", sends, acknowledged, replayed, parked)
	for _, name := range slices.Sorted(maps.Keys(h.Targets)) {
		fmt.Fprintf(&b, "  %s: %d effects\n", name, len(h.Targets[name].Effects))
	}
	w.t.Logf("seed %d:\n%s", w.o.seed, b.String())
}
