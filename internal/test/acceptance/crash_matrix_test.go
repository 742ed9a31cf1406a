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
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func init() { programs["crash"] = crashProgram }

// TestCrashMatrix kills a process at every step of the protocol, one step
// further each time, lets the job run, and counts. Every write is an increment
// under ExactlyOnce. Run it with -v to see the tables; what they show of each
// scenario on all databases is compared with testdata/.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	scenarios := crashScenarios(t)
	databases := 3
	if testing.Short() || testdb.MySQLPath() {
		databases = 1
	}
	all := &outcomes{seen: map[string]map[string]bool{}, missing: databases * len(scenarios) * 2}
	t.Cleanup(func() {
		if all.missing == 0 && !t.Failed() {
			cases.Check(t, crashFile, func(_ *testing.T, in ...string) string {
				return strings.Join(slices.Sorted(maps.Keys(all.seen[in[0]])), "; ")
			})
		}
	})
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, scenario := range scenarios {
			for _, name := range []string{scenario.Name, scenario.Name + ", first answer lost"} {
				t.Run(name, func(t *testing.T) {
					all.ran()
					newMatrix(t, db, scenario, name != scenario.Name, all).run()
				})
			}
		}
	})
}

// outcomes holds those that were seen of each scenario.
type outcomes struct {
	mu   sync.Mutex
	seen map[string]map[string]bool
	// missing is how many runs are still to come: some stay so because of -run.
	missing int
}

func (o *outcomes) ran() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missing--
}

func (o *outcomes) saw(scenario, outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[scenario] == nil {
		o.seen[scenario] = map[string]bool{}
	}
	o.seen[scenario][outcome] = true
}

// matrix is the crashes of one scenario on one database.
type matrix struct {
	t     *testing.T
	order crashOrder
	all   *outcomes
	a, b  *rig
	home  *rig // the log's database, in which an application keeps rows too
	table strings.Builder
	out   *tabwriter.Writer
}

func newMatrix(t *testing.T, db testdb.DB, scenario crashScenario, lose bool, all *outcomes) *matrix {
	t.Helper()
	log := freshLike(t, db)
	m := &matrix{t: t, all: all, a: newRigWithLog(t, freshLike(t, db), log), b: newRigWithLog(t, freshLike(t, db), log)}
	m.order = crashOrder{crashScenario: scenario, Driver: db.Driver, A: m.a.db.DSN, B: m.b.db.DSN, Log: log.DSN, Lose: lose}
	m.home = &rig{t: t, db: log, bare: log.Open(t)}
	m.home.account(0)
	m.a.account(0)
	m.b.account(0)
	m.a.exec("CREATE TABLE other (id INT PRIMARY KEY, balance INT NOT NULL)")
	m.out = tabwriter.NewWriter(&m.table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(m.out, "\nSTEP\tKILLED\tCALLER GOT\tLOG HELD\tAPPLIED IN THE END: %s\n", strings.Join(scenario.Writes, ", "))
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
	o := m.order
	o.Die, o.Row = die, die+1
	for _, db := range []*rig{m.a, m.b, m.home} {
		if die > 0 {
			db.exec(fmt.Sprintf("INSERT INTO account VALUES (%d, 0)", o.Row))
		}
	}
	m.a.exec(fmt.Sprintf("INSERT INTO other VALUES (%d, 0)", o.Row))
	if o.By == byJob {
		m.addForJob(&o)
	}
	r := m.start(o)
	held := len(m.a.logs())
	m.drain()
	var effects []int
	_ = o.each(func(db, table string) error {
		effects = append(effects, map[string]*rig{"A": m.a, "B": m.b, "home": m.home}[db].count(fmt.Sprintf("SELECT balance FROM %s WHERE id = %d", table, o.Row)))
		return nil
	})
	step, told, applied := "none", r.Told, strings.Trim(fmt.Sprint(effects), "[]")
	if die > 0 && len(r.Steps) == die {
		step = r.Steps[die-1]
	}
	if told == "" {
		told = "nothing"
	}
	fmt.Fprintf(m.out, "%d\t%s\t%s\t%d\t%s\n", die, step, told, held, applied)
	if told != "pending" { // a machine under load may keep even a retry from its answer
		m.all.saw(o.Name, told+" "+applied)
	}

	sum := 0
	for _, n := range effects {
		sum += n
		if n > 1 {
			m.t.Errorf("killed %s: an increment was applied %d times", step, n)
		}
	}
	if !o.parts() && sum != 0 && sum != len(effects) {
		m.t.Errorf("killed %s: applied in part (%s)", step, applied)
	}
	switch {
	case strings.HasPrefix(told, "failed"):
		m.t.Errorf("killed %s: the caller got %q", step, told)
	case told == "delivered", told == "pending", o.By == byJob, !o.parts() && r.durable():
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
func (m *matrix) addForJob(o *crashOrder) {
	m.t.Helper()
	u := &txlog.Unit{ID: txlog.NewID(), DataSource: "A", Settings: m.settings()}
	u.Receipt = u.ID
	_ = o.each(func(_, table string) error {
		u.Statements = append(u.Statements, txlog.Statement{SQL: plusOne(table, o.Row)})
		return nil
	})
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
