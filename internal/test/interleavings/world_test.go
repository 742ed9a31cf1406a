package interleavings

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const (
	lease     = time.Hour
	retention = attempt.DefaultRetention
	// moment is how long an actor takes between its messages at the most.
	moment = 20 * time.Millisecond
)

// world is what the actors work on, and what is known of it.
type world struct {
	random  *rand.Rand
	n       *network
	servers []*server
	log     *logStore
	bus     *listener.Bus
	apps    []app
	jobs    []*asyncjob.Job
	lost    int // the index of the job that is configured badly
	closers []func()

	running  map[string]*actor
	requests []*request
	rows     int
	parked   map[string]bool
	byRow    map[string]*part
	byJob    sync.Map // the units that a job has reported delivered
	history  []string
	// What may happen in this history.
	kinds  []kind
	faults []fate
}

// app is an application's process: a pool for each data source.
type app []*sql.DB

// logStore is the log. A process that stands still renews no leases.
type logStore struct {
	*txlog.Memory
	still atomic.Bool
}

func (l *logStore) Renew(ctx context.Context, d time.Duration, units ...*txlog.Unit) ([]*txlog.Unit, error) {
	if l.still.Load() {
		return nil, errors.New("the process stands still")
	}
	return l.Memory.Renew(ctx, d, units...)
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func newWorld(seed uint64) *world {
	w := &world{
		random: rand.New(rand.NewPCG(seed, 0)), n: &network{}, log: &logStore{Memory: txlog.NewMemory()}, bus: listener.NewBus(quiet()),
		running: map[string]*actor{}, parked: map[string]bool{}, byRow: map[string]*part{},
	}
	sub := w.bus.Subscribe(func(ev listener.Event) {
		if ev.Type == listener.ExecuteSuccess {
			w.byJob.Store(ev.ID, true)
		}
	})
	w.closers = append(w.closers, sub.Close)
	for i := range 2 {
		w.servers = append(w.servers, newServer(fmt.Sprintf("source %d", i)))
	}
	for _, tries := range []int{0, 1} {
		w.apps = append(w.apps, w.newApp(tries))
	}
	// The first job is patient, the second parks at once, and the third is at
	// home in another database.
	w.lost = 2
	w.jobs = append(w.jobs, w.newJob(home, 3), w.newJob(home, 1), w.newJob(elsewhere, 3))
	return w
}

func (w *world) newApp(tries int) (a app) {
	for _, s := range w.servers {
		c, err := mysql.NewConnector(delivery.Target{Connector: &wire{w.n, s, home}, DataSource: s.name}, bedsql.Config{
			Storage: w.log, Guarantee: bedsql.ExactlyOnce, Logger: quiet(), Lease: lease,
			SyncMaxDeliveryTryTimes: tries, NoSyncRetry: tries == 0,
			RetryInitial: time.Millisecond, RetryMax: time.Millisecond, RetryTimeout: 2 * time.Second,
		})
		must(err)
		pool := sql.OpenDB(c)
		pool.SetMaxOpenConns(2)
		w.closers = append(w.closers, func() { _ = pool.Close() })
		a = append(a, pool)
	}
	return a
}

func (w *world) newJob(database string, tries int) *asyncjob.Job {
	targets := asyncjob.Targets{}
	for _, s := range w.servers {
		tgt, err := mysql.Target("/")
		must(err)
		targets[s.name] = delivery.Target{Connector: &wire{w.n, s, database}, Dialect: tgt.Dialect, DataSource: s.name}
	}
	job, err := asyncjob.New(w.log, targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: tries, Logger: quiet(),
		Concurrency: 1, Lease: lease, PurgeInterval: time.Nanosecond, DeliveryTimeout: 10 * retention, Bus: w.bus,
	})
	must(err)
	w.closers = append(w.closers, func() { _ = job.Close() })
	return job
}

// actions are what may happen next.
var actions = []func(*world){
	(*world).send, (*world).again, (*world).job, (*world).message, (*world).runOn, (*world).toTheEnd, (*world).time, (*world).operator,
}

// failure is what ends a history: a claim that was broken.
type failure struct {
	claim, detail string
	history       []string
	seed          uint64
}

// history tries one, from nothing.
func history(seed uint64) (broken *failure) {
	w := newWorld(seed)
	defer w.close()
	defer func() {
		p := recover()
		var ok bool
		if broken, ok = p.(*failure); p != nil && !ok {
			panic(p)
		}
	}()
	// Each history has its own few kinds of writes and of faults: what needs
	// several of one kind happens more often so.
	w.kinds = some(w, kinds, 1+w.random.IntN(3))
	w.faults = some(w, faults, 1+w.random.IntN(len(faults)))
	var urn []func(*world)
	for _, a := range actions {
		urn = append(urn, slices.Repeat([]func(*world){a}, 1+w.random.IntN(8))...)
	}
	for range 5 + w.random.IntN(40) {
		pick(w, urn)(w)
		w.check()
	}
	w.settle()
	return nil
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

func (w *world) say(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// close lets all actors end.
func (w *world) close() {
	w.finish(func() {})
	for _, f := range w.closers {
		f()
	}
}

// rest lets the actors go on to their next messages.
func (w *world) rest() {
	time.Sleep(moment)
	synctest.Wait()
	for name, a := range w.running {
		if a.ended() {
			delete(w.running, name)
		}
	}
}

func (w *world) begin(name string, f func(context.Context)) {
	w.running[name] = start(name, f)
	w.rest()
}

// finish lets all messages arrive that are waited for, and loses all others, one
// by one, with a look at what each has done.
func (w *world) finish(look func()) (ended bool) {
	for range 5000 {
		w.n.do(func() {
			if len(w.n.inFlight) == 0 {
				return
			}
			m := w.n.inFlight[0]
			w.n.inFlight = w.n.inFlight[1:]
			if m.stray {
				m.breaks()
			} else {
				m.arrives()
			}
		})
		w.rest()
		look()
		if len(w.running) == 0 && len(w.n.inFlight) == 0 {
			return true
		}
	}
	return false
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
	r := &request{id: len(w.requests) + 1, kind: pick(w, w.kinds), units: map[string]bool{}, first: time.Now()}
	if r.kind.keyed {
		r.key = fmt.Sprintf("key %d", r.id)
	}
	for _, source := range r.kind.parts {
		w.rows++
		p := &part{request: r, source: source, id: w.rows, how: how(w.random.IntN(int(ways)))}
		text, _ := p.statement()
		w.byRow[text] = p
		w.servers[source].newEffect(p.id)
		r.parts = append(r.parts, p)
	}
	w.requests = append(w.requests, r)
	w.sendIt(r, pick(w, w.apps))
}

// again sends a request under a key once more.
func (w *world) again() {
	var some []*request
	for _, r := range w.requests {
		if w.mayCome(r) {
			some = append(some, r)
		}
	}
	if len(some) == 0 || len(w.running) > 3 {
		return
	}
	w.sendIt(pick(w, some), pick(w, w.apps))
}

func (w *world) sendIt(r *request, a app) {
	s := &sending{said: map[*part]bool{}}
	r.sendings = append(r.sendings, s)
	w.say("%s is sent, rows %v", r, ids(r.parts))
	w.begin(fmt.Sprintf("writer %d.%d", r.id, len(r.sendings)), func(ctx context.Context) {
		if r.key != "" {
			ctx, _ = bedsql.WithIdempotencyKey(ctx, r.key)
		}
		err := r.kind.send(ctx, a, r, s)
		w.n.do(func() { s.err, s.answered = err, true })
	})
	if s.answered {
		w.say("%s is answered %v", r, s.err)
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
	w.begin(name, func(ctx context.Context) { _, _ = w.jobs[n].RunOnce(ctx) })
}
