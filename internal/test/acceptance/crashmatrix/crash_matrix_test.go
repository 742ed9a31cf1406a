package crashmatrix

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
	"github.com/bedsql/bed/bedsql/call"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/testdb"
)

func init() { rig.Programs["crash"] = crashProgram }

// TestCrashMatrix kills a process at every step of the protocol, one step further each time, lets
// the job run, and counts. Every write is an increment under ExactlyOnce, except those under
// AtLeastOnce. Run it with -v to see the tables. Their rows, by scenario over all databases, must
// equal testdata/.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	scenarios := crashScenarios(t)
	databases := 3
	if testing.Short() || testdb.MySQLPath() {
		databases = 1
	}
	all := &outcomes{seen: map[string]map[string]bool{}}
	elsewhere := map[string]bool{} // scenarios that SQLite cannot run, where there is only SQLite
	for _, s := range scenarios {
		all.missing += databases * len(s.runs())
		elsewhere[s.Name] = testing.Short() && s.atHome()
	}
	t.Cleanup(func() {
		if all.missing == 0 && !t.Failed() {
			expected := map[string]string{}
			for _, c := range cases.Read(t, crashFile) {
				expected[c.In[0]] = c.Want
			}
			cases.Check(t, crashFile, func(_ *testing.T, in ...string) string {
				if elsewhere[in[0]] {
					return expected[in[0]]
				}
				return strings.Join(slices.Sorted(maps.Keys(all.seen[in[0]])), "; ")
			})
		}
	})
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, scenario := range scenarios {
			for _, name := range scenario.runs() {
				if scenario.atHome() && db.Driver == testdb.DriverSQLite {
					all.ran()
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					all.ran()
					newMatrix(t, db, scenario, name != scenario.Name, all).run()
				})
			}
		}
	})
}

// outcomes holds the outcomes of each scenario.
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
	a, b  *rig.Rig
	home  *rig.Rig // the log's database, in which an application keeps rows too
	job   *asyncjob.Job
	table strings.Builder
	out   *tabwriter.Writer
}

func newMatrix(t *testing.T, db testdb.DB, scenario crashScenario, lose bool, all *outcomes) *matrix {
	t.Helper()
	log := rig.FreshLike(t, db)
	m := &matrix{t: t, all: all, a: rig.NewWithLog(t, rig.FreshLike(t, db), log), b: rig.NewWithLog(t, rig.FreshLike(t, db), log)}
	m.order = crashOrder{crashScenario: scenario, Driver: db.Driver, A: m.a.DB.DSN, B: m.b.DB.DSN, Log: log.DSN, Lose: lose}
	m.home = &rig.Rig{T: t, DB: log, Bare: log.Open(t)}
	m.home.Account(0)
	m.a.Account(0)
	m.b.Account(0)
	m.a.Exec("CREATE TABLE other (id INT PRIMARY KEY, balance INT NOT NULL)")
	if scenario.ordered() {
		ddl, err := attempt.TargetSchema(db.Driver)
		if err != nil {
			t.Fatal(err)
		}
		_, order, _ := strings.Cut(strings.TrimSuffix(ddl, ";\n"), ";\n\n")
		m.a.Exec(order)
	}
	if scenario.publishes() {
		m.b.Exec(inboxTable)
	}
	if strings.HasPrefix(scenario.By, "request") || scenario.undoable() {
		m.identifies()
	}
	m.job = m.newJob()
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
func (m *matrix) crash(die int) rig.CrashReport {
	m.t.Helper()
	o := m.order
	o.Die, o.Row = die, die+1
	for _, db := range []*rig.Rig{m.a, m.b, m.home} {
		if die > 0 {
			db.Exec(fmt.Sprintf("INSERT INTO account VALUES (%d, 0)", o.Row))
		}
	}
	m.a.Exec(fmt.Sprintf("INSERT INTO other VALUES (%d, 0)", o.Row))
	m.addForJob(&o)
	r := m.start(o)
	held := len(m.a.Logs())
	m.drain()
	var effects []int
	_ = o.each(func(db, table string) error {
		effects = append(effects, map[string]*rig.Rig{"A": m.a, "B": m.b, "home": m.home}[db].Count(fmt.Sprintf("SELECT balance FROM %s WHERE id = %d", table, o.Row)))
		return nil
	})
	step, told, applied := "none", r.Told, strings.Trim(fmt.Sprint(effects), "[]")
	refunds := m.a.Count(fmt.Sprintf("SELECT balance FROM other WHERE id = %d", o.Row))
	if o.undoable() {
		applied += fmt.Sprintf(", refunds %d", refunds)
	}
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

	if o.isRequest() {
		m.resend(o, r, step)
		return r
	}
	sum := 0
	for _, n := range effects {
		sum += n
		if n < 0 || n > 1 {
			m.t.Errorf("killed %s: an increment was applied %d times", step, n)
		}
	}
	if o.undoable() && (refunds > 1 || refunds > 0 && (sum > 0 || o.declines())) {
		m.t.Errorf("killed %s: the call was undone %d times", step, refunds)
	}
	if !o.parts() && sum != 0 && sum != len(effects) {
		m.t.Errorf("killed %s: applied in part (%s)", step, applied)
	}
	switch {
	case strings.HasPrefix(told, "failed"):
		m.t.Errorf("killed %s: the caller got %q", step, told)
	case o.turns():
		if sum != 0 || told == "delivered" {
			m.t.Errorf("killed %s, told %s: not all was undone (%s)", step, told, applied)
		}
	case told == "compensated":
		m.t.Errorf("killed %s: undone although nothing was refused (%s)", step, applied)
	case o.overdue():
		if told == "delivered" && sum != len(effects) {
			m.t.Errorf("killed %s, told delivered: not all was applied (%s)", step, applied)
		}
	case o.ordered() && (effects[0] < effects[1] || effects[0] < min(o.left(), 1)):
		m.t.Errorf("killed %s: not in order, or the first is lost (%s)", step, applied)
	case told == "delivered", told == "pending", o.byJob(), !o.parts() && r.Durable():
		if sum != len(effects) {
			m.t.Errorf("killed %s, told %s: not all was applied (%s)", step, told, applied)
		}
	case o.Logging == bedsql.LogBefore && !r.Attempted():
		if sum != o.left() {
			m.t.Errorf("killed %s, before anything was promised: applied %s", step, applied)
		}
	}
	return r
}

// resend sends the request of o again, twice, after r: all is applied then, once, and every
// response is the same.
func (m *matrix) resend(o crashOrder, r rig.CrashReport, step string) {
	m.t.Helper()
	o.Die, o.Lose, o.Resend = 0, false, true
	again := m.start(o)
	m.drain()
	_ = o.each(func(db, table string) error {
		if n := map[string]*rig.Rig{"A": m.a, "B": m.b, "home": m.home}[db].Count(fmt.Sprintf("SELECT balance FROM %s WHERE id = %d", table, o.Row)); n != 1 {
			m.t.Errorf("killed %s, and sent again: %s.%s was applied %d times", step, db, table, n)
		}
		return nil
	})
	if again.Told != "delivered" || again.Got == "" || again.Again != again.Got || r.Told == "delivered" && r.Got != again.Got || strings.HasPrefix(r.Told, "failed") {
		m.t.Errorf("killed %s: the client got %s %q, and sent again %s %q, %q", step, r.Told, r.Got, again.Told, again.Got, again.Again)
	}
}

// start runs the program and reads its report.
func (m *matrix) start(o crashOrder) rig.CrashReport {
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
	cmd.Env = append(os.Environ(), rig.BeProgram+"=crash", crashEnv+"="+string(order), "GORACE=atexit_sleep_ms=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	before := m.sessions()
	out, err := cmd.Output()
	for deadline := time.Now().Add(rig.Patience); ; {
		left := m.sessions()
		maps.DeleteFunc(left, func(id, does string) bool {
			_, known := before[id]
			return known || does == ""
		})
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("waited in vain until the server has done what the process had sent: %q", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil && cmd.ProcessState.ExitCode() >= 0 {
		m.t.Fatalf("the program failed by itself: %v\n%s", err, stderr.String())
	}
	var r rig.CrashReport
	if err := json.Unmarshal(out, &r); err != nil {
		m.t.Fatalf("the program's report %q: %v\n%s", out, err, stderr.String())
	}
	return r
}

// sessions are the server's other sessions and their activity, "" when idle for some time: a killed
// process then has no work left there. This process may open a session at any time, because its log
// measures round trips.
func (m *matrix) sessions() map[string]string {
	m.t.Helper()
	names := fmt.Sprintf("('%s', '%s', '%s')", m.a.DB.Name, m.b.DB.Name, m.home.DB.Name)
	query := `SELECT id, CASE WHEN command = 'Sleep' AND time > 2 THEN '' ELSE CONCAT_WS(' ', command, time, state, info) END
		FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db IN ` + names
	switch m.order.Driver {
	case testdb.DriverSQLite:
		return nil
	case testdb.DriverPostgres:
		query = `SELECT pid, CASE WHEN state = 'idle' AND state_change < NOW() - INTERVAL '2 seconds' THEN '' ELSE CONCAT_WS(' ', state, state_change, query) END
			FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IN ` + names
	}
	rows, err := m.home.Bare.QueryContext(context.Background(), query)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	does := map[string]string{}
	for rows.Next() {
		var id, what string
		if err := rows.Scan(&id, &what); err != nil {
			m.t.Fatal(err)
		}
		does[id] = what
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
	return does
}

// addForJob puts a unit into the log as a caller leaves it to the job, or one for each
// write in an order.
func (m *matrix) addForJob(o *crashOrder) {
	m.t.Helper()
	var units []*entry.Unit
	for i, w := range o.Writes[:o.left()] {
		_, table, _ := strings.Cut(w, ".")
		if i == 0 || o.ordered() {
			u := &entry.Unit{ID: entry.NewID(), DataSource: "A", Settings: m.settings()}
			if u.Receipt = u.ID; o.ordered() {
				u.Order = []entry.Order{{Key: m.a.OrderKeyOf("A", crashKey)}}
			}
			units = append(units, u)
		}
		u := units[len(units)-1]
		u.Statements = append(u.Statements, entry.Statement{SQL: o.plusOne(table)})
	}
	for _, u := range units {
		if err := m.a.Storage.Add(context.Background(), time.Minute, u); err != nil {
			m.t.Fatal(err)
		}
		if u.Behind != "" {
			continue // nobody has a lease of it
		}
		if err := m.a.Storage.Release(context.Background(), u, entry.Verdict{}); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *matrix) settings() string {
	tgt, err := rig.Target(m.order.Driver)(m.order.A)
	if err != nil {
		m.t.Fatal(err)
	}
	return tgt.Settings
}

// newJob is a job that survives. One is enough for all crashes: connections are costly in
// PostgreSQL.
func (m *matrix) newJob() *asyncjob.Job {
	m.t.Helper()
	targets := asyncjob.Targets{}
	places := map[string]string{"A": m.order.A, "B": m.order.B}
	if m.order.Driver != testdb.DriverSQLite {
		places["home"] = m.order.Log
	}
	for name, dsn := range places {
		tgt, err := rig.Target(m.order.Driver)(dsn)
		if err != nil {
			m.t.Fatal(err)
		}
		targets[name] = tgt
	}
	var err error
	if m.order.publishes() {
		if targets["events"], err = bedmessage.Target(inbox{m.b.Bare}, "events"); err != nil {
			m.t.Fatal(err)
		}
	}
	if m.order.calls() {
		home := rig.TargetOf(m.t, m.a.DB)
		home.DataSource = "A" // the receipts are the killed service's
		peer, err := m.order.peer(m.a.OpenTarget(home))
		if err != nil {
			m.t.Fatal(err)
		}
		if targets["payments"], err = call.Target(peer, "payments", "http://payments"); err != nil {
			m.t.Fatal(err)
		}
	}
	job, err := asyncjob.New(m.a.Storage, targets, crashJob())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = job.Close() })
	return job
}

// drain lets the job finish the program's leftovers.
func (m *matrix) drain() {
	m.t.Helper()
	for deadline := time.Now().Add(rig.Patience); ; {
		m.a.LogAge(2 * crashLease)
		_, err := m.job.RunOnce(context.Background())
		logs := m.a.Logs()
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
