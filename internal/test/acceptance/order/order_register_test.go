package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// orderLease is the lease of the writers, who are stopped for longer.
const orderLease = 400 * time.Millisecond

// appendTo is the write: a register holds the names of all that were applied to it, in
// their order. A second time, or an inversion, shows.
func appendTo(driver string) string {
	if driver == testdb.DriverMySQL {
		return "UPDATE register SET names = CONCAT(names, ?) WHERE id = ?"
	}
	return rig.Placeholders(driver, "UPDATE register SET names = names || ? WHERE id = ?")
}

func init() {
	rig.Programs["order writer"] = func() int {
		if err := orderWriter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// orderWriter is a process that writes to two registers, each under its own order key:
// driver, target, log, name, how many more after a SIGTERM. It says when it calls and what came
// of it.
func orderWriter() error {
	driver, name := os.Args[1], os.Args[4]
	n, err := strconv.Atoi(os.Args[5])
	if err != nil {
		return err
	}
	storage, err := txlog.Open(context.Background(), driver, os.Args[3])
	for end := time.Now().Add(rig.Patience); err != nil && time.Now().Before(end); { // its connection was cut
		time.Sleep(10 * time.Millisecond)
		storage, err = txlog.Open(context.Background(), driver, os.Args[3])
	}
	if err != nil {
		return err
	}
	cfg := bedsql.Config{Storage: storage, Logger: rig.Quiet(), Lease: orderLease, LogTimeout: 2 * time.Second,
		AttemptTimeout: 2 * time.Second, RetryInitial: 2 * time.Millisecond, RetryMax: 20 * time.Millisecond}
	if err := rig.Register(driver)("bed-order", cfg); err != nil {
		return err
	}
	pool, err := sql.Open("bed-order", os.Args[2])
	if err != nil {
		return err
	}
	pool.SetMaxOpenConns(2)
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for i := 0; n > 0; i++ {
		if told.Err() != nil {
			n--
		}
		id := 1 + i%2
		said := fmt.Sprintf("%s.%d %d", name, i, id)
		fmt.Fprintln(os.Stderr, "call", said, time.Now().UnixNano())
		ctx, cancel := context.WithTimeout(bedsql.WithOrderKey(context.Background(), strconv.Itoa(id)), 4*time.Second)
		_, err := pool.ExecContext(ctx, appendTo(driver), fmt.Sprintf(" %s.%d", name, i), id)
		cancel()
		outcome := fmt.Sprint(bedsql.OutcomeOf(err))
		if errors.Is(err, txlog.ErrInDoubt) {
			outcome = "in doubt"
		}
		fmt.Fprintln(os.Stderr, "return", said, time.Now().UnixNano(), outcome)
		time.Sleep(5 * time.Millisecond) // so that the others come in between
	}
	fmt.Fprintln(os.Stderr, "end")
	return nil
}

// registerWrite is a write to a register as its process reported it.
type registerWrite struct {
	name           string
	id             int
	called, ended  int64  // ended: math.MaxInt64 if it did not say
	outcome        string // empty if it did not say
	at             int    // place among those applied; -1: it was not
	accepted, sure bool   // it is in the log or applied, for certain; it is delivered
}

// writesOf reads what a process said.
func writesOf(t *testing.T, lines []string) (all []*registerWrite) {
	t.Helper()
	by := map[string]*registerWrite{}
	for _, line := range lines {
		f := strings.SplitN(line, " ", 5)
		if len(f) < 4 {
			continue
		}
		id, _ := strconv.Atoi(f[2])
		at, err := strconv.ParseInt(f[3], 10, 64)
		if err != nil {
			t.Fatal(line)
		}
		switch f[0] {
		case "call":
			w := &registerWrite{name: f[1], id: id, called: at, ended: math.MaxInt64, at: -1}
			by[w.name], all = w, append(all, w)
		case "return":
			w := by[f[1]]
			w.ended, w.outcome = at, f[4]
			w.sure = w.outcome == bedsql.OutcomeDelivered.String()
			w.accepted = w.sure || w.outcome == bedsql.OutcomeAccepted.String()
		}
	}
	return all
}

// registerStep is a step for porcupine.
type registerStep struct {
	at    int    // the place of a write among those applied; -1: it reads
	names string // what was read
}

// registerModel models a register by its number of writes: the last state determines the writes and
// their order.
var registerModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		s, n := input.(registerStep), state.(int)
		if s.at < 0 {
			return len(strings.Fields(s.names)) == n, n
		}
		return s.at == n, n + 1
	},
	Equal: func(a, b any) bool { return a == b },
}

func TestOrderOfAKeyHoldsUnderKillsCutsAndPauses(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		names := testdb.By[string]{MySQL: "LONGTEXT", Postgres: "TEXT", SQLite: "TEXT"}.For(db.Driver)
		r.Exec("CREATE TABLE register (id INT PRIMARY KEY, names "+names+" NOT NULL)", "INSERT INTO register VALUES (1, '')", "INSERT INTO register VALUES (2, '')")
		through, logThrough := db, r.LogDB
		var proxies []*testproxy.Proxy
		if db.Driver != testdb.DriverSQLite {
			proxies = []*testproxy.Proxy{testproxy.New(t, db.Addr()), testproxy.New(t, r.LogDB.Addr())}
			through = rig.WithParam(db, "bedDataSource", rig.DataSourceOf(t, db)).Via(proxies[0].Addr())
			logThrough = r.LogDB.Via(proxies[1].Addr())
		}
		const each = 20
		run := func(name string) *rig.Process {
			return rig.Start(t, "order writer", db.Driver, through.DSN, logThrough.DSN, name, strconv.Itoa(each))
		}
		ctx, stop := context.WithCancel(t.Context())
		var side sync.WaitGroup
		job := r.Job(func(c *asyncjob.Config) { c.RetryDelay, c.MaxDeliveryTryTimes = 5*time.Millisecond, 100 })
		var steps [3][]porcupine.Operation
		read := func(id int) {
			var text string
			called := time.Now().UnixNano()
			if err := r.Bare.QueryRow("SELECT names FROM register WHERE id = " + strconv.Itoa(id)).Scan(&text); err == nil {
				steps[id] = append(steps[id], porcupine.Operation{ClientId: 0, Input: registerStep{at: -1, names: text}, Call: called, Return: time.Now().UnixNano()})
			}
		}
		side.Go(func() {
			for ctx.Err() == nil {
				_, _ = job.RunOnce(ctx)
				read(1)
				read(2)
				time.Sleep(10 * time.Millisecond)
			}
		})
		processes := []*rig.Process{run("a"), run("b"), run("c")}
		// One is killed, one stands still for longer than its lease, and all connections are
		// cut, some after a COMMIT was carried out and before its answer.
		processes[0].Until("return a.3 ")
		processes[0].Kill()
		if len(proxies) > 0 {
			proxies[0].CutAfter(testproxy.Text("bed_receipt")) // of a process that has prepared nothing yet
			proxies[1].CutAfter(testproxy.Commit)
		}
		processes = append(processes, run("d"))
		processes[1].Until("return b.4 ")
		processes[1].Pause()
		time.Sleep(3 * orderLease) // it is to be longer than the lease
		processes[1].Proceed()
		for _, p := range proxies {
			p.CutAll()
		}
		for _, p := range processes[1:] {
			p.Until("call") // it minds the signal
			if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range processes[1:] {
			select {
			case <-p.Dead:
			case <-time.After(2 * time.Minute):
			}
			p.Until("end")
		}
		for _, p := range proxies {
			p.CutAll()
		}
		rig.Eventually(t, "everything is delivered", func() bool { return len(r.Logs()) == 0 || len(r.Parked()) > 0 })
		stop()
		side.Wait()
		if parked := r.Parked(); len(parked) > 0 {
			t.Fatalf("parked: %v", parked)
		}
		read(1)
		read(2)
		var writes []*registerWrite
		for _, p := range processes {
			lines, _ := p.Said()
			writes = append(writes, writesOf(t, lines)...)
		}
		for id := 1; id <= 2; id++ {
			last := steps[id][len(steps[id])-1]
			judgeRegister(t, slices.DeleteFunc(slices.Clone(writes), func(w *registerWrite) bool { return w.id != id }), steps[id], last.Input.(registerStep).names)
		}
	})
}

// judgeRegister judges the writes to a register, and what was read of it.
func judgeRegister(t *testing.T, writes []*registerWrite, reads []porcupine.Operation, names string) {
	t.Helper()
	applied := strings.Fields(names)
	for _, w := range writes {
		if w.at = slices.Index(applied, w.name); w.accepted && w.at < 0 {
			t.Errorf("%s was %s, and is lost", w.name, w.outcome)
		} else if w.at >= 0 && slices.Contains(applied[w.at+1:], w.name) {
			t.Errorf("%s was applied twice", w.name)
		} else if w.at >= 0 && (w.outcome == bedsql.OutcomeNotAccepted.String() || w.outcome == bedsql.OutcomeRefused.String()) {
			t.Errorf("%s was %s, and is applied", w.name, w.outcome)
		}
	}
	end := time.Now().UnixNano()
	accepted, known := 0, 0
	steps := slices.Clone(reads)
	for i, w := range writes {
		if w.accepted {
			accepted++
		}
		if w.at < 0 {
			continue
		}
		known++
		step := porcupine.Operation{ClientId: i + 1, Input: registerStep{at: w.at}, Call: w.called, Return: end}
		if w.sure {
			step.Return = w.ended
		}
		steps = append(steps, step)
		for _, earlier := range writes {
			if earlier.accepted && earlier.ended < w.called && earlier.at > w.at {
				t.Errorf("%s was %s before %s was called, and took effect after it", earlier.name, earlier.outcome, w.name)
			}
		}
	}
	for _, r := range reads {
		if text := r.Input.(registerStep).names; !strings.HasPrefix(names, text) {
			t.Errorf("it held %q, and ends as %q", text, names)
		}
	}
	if known != len(applied) {
		t.Errorf("%d writes were applied, %d are known", len(applied), known)
	}
	if accepted < 10 {
		t.Errorf("only %d of %d writes were accepted", accepted, len(writes))
	}
	if porcupine.CheckOperationsTimeout(registerModel, steps, rig.Patience) != porcupine.Ok {
		t.Errorf("what was read is not linearizable: it ends as %s", names)
	}
}
