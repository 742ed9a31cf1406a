package simulation

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const (
	lease     = time.Hour
	retention = attempt.DefaultRetention
	// moment is how long an actor takes between its messages at the most. No pause
	// before a repetition is longer: they are random, and not by the seed.
	moment = 300 * time.Millisecond
	// bound is the time limit of everything without a lease.
	bound = 100 * moment
	// attemptBound is the time limit of an attempt. It never coincides with another limit, because
	// the scheduler would decide which one ends first.
	attemptBound = bound + moment/2
)

// world is the actors' servers, and the knowledge about them.
type world struct {
	random  *rand.Rand
	n       *network
	servers []*server
	// The log is in a database of its own, or in memory.
	database  *server
	memory    *txlog.Memory
	bus       *listener.Bus
	processes []*process
	apps      []app
	logging   []bedsql.Logging // of each app
	jobs      []worker
	people    *process // the operators' command
	lost      int      // the index of the job that is configured badly
	// least: the applications write at least once.
	least bool
	// focus is the subject of the history; nil for everything.
	focus *focus
	// slowLog keeps entries in flight to the log while other messages go on.
	slowLog bool
	// calm means that there are no faults, and that no actor waits for longer than a lease.
	calm bool
	// denied: a target refused an attempt for want of a right.
	denied  bool
	closers []func()

	running  map[string]*actor
	begun    []*actor
	steps    int
	seed     uint64
	broken   *failure
	requests []*request
	rows     int
	parked   map[string]bool
	byRow    map[string]*part
	byID     map[int]*part
	// gates are the rows changed only by the first write, by source.
	gates   map[int]int
	byJob   sync.Map // the units that a job has reported delivered
	history []string
	// kinds, loggings and faults are the choices of this history.
	kinds    []kind
	loggings []bedsql.Logging
	faults   []fate
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func newWorld(seed uint64, f *focus) *world {
	w := &world{
		seed: seed, focus: f, random: rand.New(rand.NewPCG(seed, 0)), n: &network{names: map[string]string{}}, bus: listener.NewBus(quiet()),
		running: map[string]*actor{}, parked: map[string]bool{}, byRow: map[string]*part{}, byID: map[int]*part{}, gates: map[int]int{},
	}
	sub := w.bus.Subscribe(func(ev listener.Event) {
		if ev.Type == listener.ExecuteSuccess {
			w.byJob.Store(ev.ID, true)
		}
	})
	w.closers = append(w.closers, sub.Close)
	for i := range 2 {
		s := newServer(fmt.Sprintf("source %d", i), pick(w, []string{mySQL, mariaDB}))
		w.servers = append(w.servers, s)
		w.n.names[s.name], w.n.names[tables.ReceiptSchema(s.name)] = s.name, s.name
	}
	if f != nil && f.inMemory || w.random.IntN(2) == 0 && f == nil {
		w.memory = txlog.NewMemory()
	} else {
		version := mySQL
		if f.isHome() {
			version = pick(w, []string{mySQL, mariaDB})
		}
		w.database = newServer("the log", version)
		w.database.isLog, w.database.attempts = true, f.isHome()
		w.n.names[w.database.name] = w.database.name
	}
	w.least, w.calm = w.random.IntN(4) == 0 && f.isWide(), w.random.IntN(8) == 0 && f.isWide()
	for _, s := range w.servers {
		if f.isOrdered() && w.calm { // to make it begins with an error
			ddl, err := attempt.TargetSchema("mysql")
			must(err)
			_, order, _ := strings.Cut(strings.TrimSuffix(ddl, ";\n"), ";\n\n")
			s.connect(home).create("bed_order", order)
		}
	}
	w.people = w.newProcess("operator")
	for i := range tries {
		w.logging = append(w.logging, pick(w, []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure}))
		w.apps = append(w.apps, w.newApp(i))
	}
	for i := range len(patience) + 1 {
		w.jobs = append(w.jobs, w.newJob(i))
	}
	return w
}

var (
	// tries are those of the applications before they leave a write to a job.
	tries = []int{0, 1}
	// patience is how often a job tries before it parks. The last job is at home
	// in another database.
	patience = []int{3, 1}
)

// targets are the servers of the writes.
func (w *world) targets() []*server {
	if w.focus.isHome() {
		return append(slices.Clone(w.servers), w.database)
	}
	return w.servers
}

// server is the server of a source.
func (w *world) server(source int) *server { return w.targets()[source] }

func (w *world) newApp(i int) app {
	a := app{process: w.newProcess(fmt.Sprintf("app %d", i))}
	attempts := attemptBound
	if w.calm { // the others may take as many steps meanwhile
		attempts = -1
	}
	guarantee := bedsql.ExactlyOnce
	if w.least {
		guarantee = bedsql.AtLeastOnce
	}
	for _, s := range w.targets() {
		c, err := mysql.NewConnector(delivery.Target{Connector: &wire{w.n, a.process, s, home, false}, DataSource: s.name}, bedsql.Config{
			Storage: a.log, Guarantee: guarantee, Logging: w.logging[i], Logger: quiet(), Lease: lease,
			SyncMaxDeliveryTryTimes: tries[i], NoSyncRetry: tries[i] == 0,
			RetryInitial: time.Millisecond, RetryMax: time.Millisecond, RetryTimeout: bound, LogTimeout: bound, AttemptTimeout: attempts,
		})
		must(err)
		pool := sql.OpenDB(c)
		pool.SetMaxOpenConns(16) // who waits for one gets it by chance
		a.closers = append(a.closers, func() { _ = pool.Close() })
		a.pools = append(a.pools, pool)
	}
	return a
}

func (w *world) newJob(i int) worker {
	j := worker{process: w.newProcess(fmt.Sprintf("job %d", i))}
	database, most := elsewhere, 3
	if i < len(patience) {
		database, most = home, patience[i]
	}
	targets := asyncjob.Targets{}
	for _, s := range w.targets() {
		t, err := mysql.Target("/" + database)
		must(err)
		targets[s.name] = delivery.Target{Connector: &wire{w.n, j.process, s, database, false}, Dialect: t.Dialect, DataSource: s.name}
	}
	job, err := asyncjob.New(j.log, targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: most, Logger: quiet(),
		Concurrency: 1, Lease: lease, PurgeInterval: time.Nanosecond, DeliveryTimeout: 10 * retention, Bus: w.bus,
	})
	must(err)
	j.job = job
	j.closers = append(j.closers, func() { _ = job.Close() })
	return j
}

// actions are the choices for the next step.
var actions = []func(*world){
	(*world).send, (*world).again, (*world).job, (*world).message, (*world).runOn, (*world).toTheEnd, (*world).toAReceipt, (*world).time, (*world).allJobs,
	(*world).againBesideAPurge,
}

// disturbances are further choices, in histories with faults.
var disturbances = []func(*world){(*world).operator, (*world).crash}

// failure is the broken claim that ended a history.
type failure struct{ claim, detail string }

// history tries one, from nothing.
func history(seed uint64, f *focus) *world {
	day := 24 * time.Hour
	time.Sleep(day - time.Duration(time.Now().UnixNano())%day) // what is done each minute comes at the same steps
	w := newWorld(seed, f)
	w.run()
	return w
}

func (w *world) run() {
	defer w.close()
	defer func() {
		p := recover()
		var ok bool
		if w.broken, ok = p.(*failure); p != nil && !ok {
			panic(p)
		}
	}()
	// Each history has its own few kinds of writes and of faults: combinations of the same kind are
	// then more frequent.
	w.kinds = kinds
	if w.focus != nil {
		w.kinds = w.focus.kinds
	}
	if w.least { // a key is exactly once
		w.kinds = slices.DeleteFunc(slices.Clone(w.kinds), func(k kind) bool { return k.keyed })
	}
	w.kinds = some(w, w.kinds, min(1+w.random.IntN(3), len(w.kinds)))
	w.loggings = some(w, []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure}, 1+w.random.IntN(3))
	w.faults = some(w, faults, 1+w.random.IntN(len(faults)))
	may := slices.Clone(actions)
	if w.calm {
		w.faults = nil
	} else {
		may = append(may, disturbances...)
		if w.focus.isTurning() {
			may = append(may, (*world).compensate)
		}
	}
	// An entry written while its target is unreachable does not name the place of its receipt: no
	// job may then be at home elsewhere.
	if w.lost = len(patience); w.random.IntN(2) == 0 {
		w.lost = -1
		w.jobs = w.jobs[:len(patience)]
		if !w.calm {
			may = append(may, (*world).fall)
		}
	}
	var urn []func(*world)
	for _, a := range may {
		urn = append(urn, slices.Repeat([]func(*world){a}, 1+w.random.IntN(8))...)
	}
	most := 40
	if w.focus != nil {
		w.focus.begin(w)
	}
	if !w.focus.isWide() {
		most = 10
	}
	for range 5 + w.random.IntN(most) {
		pick(w, urn)(w)
		w.check()
	}
	w.settle()
}

// pick chooses one of several.
func pick[T any](w *world, of []T) T { return of[w.random.IntN(len(of))] }

// some chooses n of several.
func some[T any](w *world, of []T, n int) []T {
	of = slices.Clone(of)
	w.random.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:n]
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// say records a step without ids, so that the same seed gives the same text.
func (w *world) say(format string, args ...any) {
	w.history = append(w.history, anID.ReplaceAllString(fmt.Sprintf(format, args...), "…"))
}

var anID = regexp.MustCompile(`order-[0-9a-f]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// close ends all processes, including killed ones.
func (w *world) close() {
	w.n.do(func() {
		w.n.free = true
		for _, m := range w.n.inFlight {
			m.breaks()
		}
		w.n.inFlight = nil
	})
	for _, a := range w.begun {
		<-a.done
	}
	for _, p := range w.processes {
		p.close()
	}
	for _, f := range w.closers {
		f()
	}
}

// rest lets the actors go on to their next messages.
func (w *world) rest() {
	w.steps++
	time.Sleep(moment)
	synctest.Wait()
	for name, a := range w.running {
		if a.ended() {
			delete(w.running, name)
		}
	}
}

func (w *world) begin(name string, p *process, f func(context.Context)) {
	a := start(name, p, f)
	w.running[name] = a
	w.begun = append(w.begun, a)
	w.rest()
	w.hurry()
}

// finish delivers all messages with a waiting sender, and loses all others, one by one. It calls
// look after each.
func (w *world) finish(look func()) (ended bool) {
	for range 5000 {
		w.n.do(func() {
			if len(w.n.inFlight) == 0 {
				return
			}
			all := w.ordered()
			m := all[0]
			if w.calm {
				m = w.oldest()
			} else if w.focus.locks() { // who holds a lock has to get on
				m = all[w.steps%len(all)]
			}
			w.n.inFlight = slices.DeleteFunc(w.n.inFlight, func(o *message) bool { return o == m })
			if m.stray {
				m.breaks()
			} else {
				w.say("%s arrives", m)
				m.arrives()
			}
		})
		w.rest()
		w.timeOut()
		look()
		if len(w.running) == 0 && len(w.n.inFlight) == 0 {
			return true
		}
	}
	return false
}

// timeOut ends the sessions with an open transaction that nobody will end, as a server's
// wait_timeout does. A bare driver puts a connection back into its pool after any answer to COMMIT.
func (w *world) timeOut() {
	for _, a := range w.apps {
		if slices.ContainsFunc(slices.Collect(maps.Values(w.running)), func(r *actor) bool { return r.process == a.process }) {
			continue
		}
		w.n.do(func() {
			for _, c := range a.conns {
				if c.s.open && !slices.ContainsFunc(w.n.inFlight, func(m *message) bool { return m.conn == c }) {
					w.say("the server ends an idle session of an application")
					c.breaks()
				}
			}
		})
	}
}

func (w *world) end() {
	if !w.finish(w.check) {
		w.fail("stuck", "the actors come to no end: %v, %d messages in flight", slices.Sorted(maps.Keys(w.running)), len(w.n.inFlight))
	}
}

func (w *world) send() {
	if len(w.running) > 3 {
		return
	}
	r := w.request(pick(w, w.kinds), pick(w, w.loggings))
	if w.focus.isTurning() {
		w.canTurn(r)
	}
	w.sendIt(r, pick(w, w.apps), false)
}

// request makes a new one.
func (w *world) request(k kind, logging bedsql.Logging) *request {
	r := &request{id: len(w.requests) + 1, kind: k, logging: logging, units: map[string]bool{}, first: time.Now()}
	if r.kind.keyed {
		r.key = fmt.Sprintf("key %d", r.id)
	}
	if w.focus.isOrdered() {
		r.order = pick(w, []string{"one", "one", "one", "other"})
	}
	for i, source := range r.kind.parts {
		need := anyRows
		if r.kind.needs != nil {
			need = r.kind.needs[i]
		}
		r.parts = append(r.parts, w.part(r, source, need))
	}
	w.requests = append(w.requests, r)
	return r
}

// part makes a new one.
func (w *world) part(r *request, source int, need need) *part {
	w.rows++
	p := &part{request: r, source: source, id: w.rows, how: how(w.random.IntN(int(ways))), need: need}
	w.besides(p)
	text, _ := p.statement()
	w.byRow[text], w.byID[p.id] = p, p
	w.n.do(func() {
		w.n.names[text] = fmt.Sprintf("row %d", p.id)
		w.server(source).forbidden[p.id] = need == forbidden
	})
	w.server(source).newEffect(p.id)
	return p
}

// besides makes the second row of a part.
func (w *world) besides(p *part) {
	if p.need == theGate && w.gates[p.source] != 0 {
		p.beside = w.gates[p.source]
		return
	}
	if p.need != theGate && p.need != otherRows {
		return
	}
	w.rows++
	p.beside = w.rows
	w.server(p.source).newEffect(p.beside)
	if p.need == theGate {
		w.gates[p.source] = p.beside
	}
}

// again repeats a request under a key, even one that may be forgotten by now.
func (w *world) again() {
	var some []*request
	for _, r := range w.requests {
		if w.mayCome(r) || r.key != "" && !r.kind.spans() {
			some = append(some, r)
		}
	}
	if len(some) == 0 || len(w.running) > 3 {
		return
	}
	r := pick(w, some)
	w.sendIt(r, pick(w, w.apps), !w.mayCome(r))
}

func (w *world) sendIt(r *request, a app, late bool) {
	s := &sending{by: a.process, said: map[*part]bool{}, late: late}
	for _, o := range r.sendings {
		if !o.answered {
			o.beside = append(o.beside, s)
		}
	}
	r.sendings = append(r.sendings, s)
	w.say("%s is sent, rows %v, logging %d", r, ids(r.parts), r.logging)
	w.begin(r.sender(), a.process, func(ctx context.Context) {
		ctx = bedsql.WithLogging(ctx, r.logging)
		if r.order != "" && !r.kind.isHome() { // else only what it records is
			ctx = bedsql.WithOrderKey(ctx, r.order)
		}
		var key *bedsql.IdempotencyKey
		if r.key != "" {
			ctx, key = bedsql.WithIdempotencyKey(ctx, r.key)
		}
		err := r.kind.send(ctx, a.pools, r, s)
		s.meant = s.meant || isBehind(err) || r.mayTurn() && hasTurned(err)
		w.n.do(func() { s.err, s.answered, s.replayed = err, !a.dead, key != nil && key.Replayed() })
	})
	w.look() // its number
	if s.answered {
		w.say("%s is answered %v, replayed %v", r, s.err, s.replayed)
	}
}

func ids(parts []*part) (all []int) {
	for _, p := range parts {
		all = append(all, p.id)
	}
	return all
}

func (w *world) job() { w.round(w.random.IntN(len(w.jobs))) }

func (w *world) round(n int) {
	name := fmt.Sprintf("job %d", n)
	if w.running[name] != nil {
		return
	}
	w.say("%s begins a round", name)
	j := w.jobs[n]
	w.begin(name, j.process, func(ctx context.Context) { _, _ = j.job.RunOnce(ctx) })
}
