package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func init() { programs["crash"] = crashProgram }

// TestCrashMatrix kills a process at every step of the protocol, one step
// further each time, lets the job run, and counts. Every write is an increment
// under ExactlyOnce. Run it with -v to see the table.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, scenario := range slices.Sorted(maps.Keys(crashScenarios)) {
			names := map[bedsql.Logging]string{bedsql.LogBefore: scenario}
			if crashScenarios[scenario].modes {
				names[bedsql.LogAlongside], names[bedsql.LogOnFailure] = scenario+", log alongside", scenario+", log on failure"
			}
			for logging, name := range names {
				for _, lose := range []bool{false, true} {
					if lose {
						name += ", first answer lost"
					}
					t.Run(name, func(t *testing.T) {
						newMatrix(t, db, scenario, lose, logging).run()
					})
				}
			}
		}
	})
}

// matrix is the crashes of one scenario on one database.
type matrix struct {
	t     *testing.T
	order crashOrder
	a, b  *rig
	table strings.Builder
	out   *tabwriter.Writer
}

func newMatrix(t *testing.T, db testdb.DB, scenario string, lose bool, logging bedsql.Logging) *matrix {
	t.Helper()
	log := freshLike(t, db)
	m := &matrix{t: t, a: newRigWithLog(t, freshLike(t, db), log), b: newRigWithLog(t, freshLike(t, db), log)}
	m.order = crashOrder{Driver: db.Driver, A: m.a.db.DSN, B: m.b.db.DSN, Log: log.DSN, Scenario: scenario, Lose: lose, Logging: logging}
	m.a.account(0)
	m.b.account(0)
	m.a.exec("CREATE TABLE other (id INT PRIMARY KEY, balance INT NOT NULL)")
	m.out = tabwriter.NewWriter(&m.table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(m.out, "\nSTEP\tKILLED\tCALLER WAS TOLD\tLOG HELD\tAPPLIED IN THE END\n")
	return m
}

func (m *matrix) run() {
	m.t.Helper()
	all := m.crash(0) // nobody is killed: how many steps are there?
	if len(all.Steps) < 6 {
		m.t.Fatalf("only %d steps: %q", len(all.Steps), all.Steps)
	}
	killed := 0
	for die := 1; die <= len(all.Steps); die++ {
		if r := m.crash(die); len(r.Steps) == die {
			killed++
		}
	}
	_ = m.out.Flush()
	m.t.Log(m.table.String())
	if killed < len(all.Steps)/2 {
		m.t.Errorf("of %d steps only %d were met again", len(all.Steps), killed)
	}
}

// crash runs the program until it dies at a step, then the job, and judges.
func (m *matrix) crash(die int) crashReport {
	m.t.Helper()
	o, scenario := m.order, crashScenarios[m.order.Scenario]
	o.Die, o.Row = die, die+1
	for _, db := range []*rig{m.a, m.b} {
		if die > 0 {
			db.exec(fmt.Sprintf("INSERT INTO account VALUES (%d, 0)", o.Row))
		}
	}
	m.a.exec(fmt.Sprintf("INSERT INTO other VALUES (%d, 0)", o.Row))
	if scenario.call == nil {
		m.addForJob(o.Row)
	}
	r := m.start(o)
	held := len(m.a.logs())
	m.drain()
	a, other, b := m.a.balance(o.Row), m.a.count(fmt.Sprintf("SELECT balance FROM other WHERE id = %d", o.Row)), m.b.balance(o.Row)
	step, told := "none", r.Told
	if die > 0 && len(r.Steps) == die {
		step = r.Steps[die-1]
	}
	if told == "" {
		told = "nothing"
	}
	applied, effects := fmt.Sprintf("A %d", a), []int{a}
	if scenario.other {
		applied, effects = fmt.Sprintf("%s+%d", applied, other), append(effects, other)
	}
	if scenario.b {
		applied, effects = fmt.Sprintf("%s, B %d", applied, b), append(effects, b)
	}
	fmt.Fprintf(m.out, "%d\t%s\t%s\t%d\t%s\n", die, step, told, held, applied)

	sum := 0
	for _, n := range effects {
		sum += n
		if n > 1 {
			m.t.Errorf("killed %s: an increment was applied %d times", step, n)
		}
	}
	if !scenario.parts && sum != 0 && sum != len(effects) {
		m.t.Errorf("killed %s: applied in part (%s)", step, applied)
	}
	switch {
	case strings.HasPrefix(told, "failed"):
		m.t.Errorf("killed %s: the caller was told %q", step, told)
	case told == "delivered", told == "pending", scenario.call == nil, !scenario.parts && r.durable():
		if sum != len(effects) {
			m.t.Errorf("killed %s, told %s: not all was applied (%s)", step, told, applied)
		}
	case o.Logging == bedsql.LogBefore && !r.attempted():
		if sum != 0 {
			m.t.Errorf("killed %s, before anything was promised: applied %s", step, applied)
		}
	}
	return r
}

// start runs the program and reads its report.
func (m *matrix) start(o crashOrder) crashReport {
	m.t.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		m.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.CommandContext(m.t.Context(), exe)
	cmd.Env = append(os.Environ(), beProgram+"=crash", crashEnv+"="+string(order), "GORACE=atexit_sleep_ms=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() >= 0 {
		m.t.Fatalf("the program failed by itself: %v\n%s", err, stderr.String())
	}
	var r crashReport
	if err := json.Unmarshal(out, &r); err != nil {
		m.t.Fatalf("the program's report %q: %v\n%s", out, err, stderr.String())
	}
	return r
}

// addForJob puts a unit into the log as a caller leaves it to the job.
func (m *matrix) addForJob(row int) {
	m.t.Helper()
	u := &txlog.Unit{
		ID: txlog.NewID(), DataSource: "A", Settings: m.settings(),
		Statements: []txlog.Statement{{SQL: plusOne("account", row)}, {SQL: plusOne("other", row)}},
	}
	u.Receipt = u.ID
	if err := m.a.storage.Add(context.Background(), time.Minute, u); err != nil {
		m.t.Fatal(err)
	}
	if err := m.a.storage.Release(context.Background(), u, txlog.Verdict{}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *matrix) settings() string {
	tgt, err := target(m.order.Driver)(m.order.A)
	if err != nil {
		m.t.Fatal(err)
	}
	return tgt.Settings
}

// drain lets a job that is not killed finish what the program left behind.
func (m *matrix) drain() {
	m.t.Helper()
	targets := asyncjob.Targets{}
	for name, dsn := range map[string]string{"A": m.order.A, "B": m.order.B} {
		tgt, err := target(m.order.Driver)(dsn)
		if err != nil {
			m.t.Fatal(err)
		}
		targets[name] = tgt
	}
	job, err := asyncjob.New(m.a.storage, targets, crashJob())
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = job.Close() }()
	for deadline := time.Now().Add(patience); ; {
		m.a.logAge(2 * crashLease)
		_, err := job.RunOnce(context.Background())
		logs := m.a.logs()
		if len(logs) == 0 {
			return
		}
		for _, u := range logs {
			if u.Parked {
				m.t.Fatalf("a unit was parked: %s", u.LastError)
			}
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the job did not empty the log: %+v (the last round: %v)", logs[0], err)
		}
		time.Sleep(5 * time.Millisecond) // until the server has noticed who is gone
	}
}
