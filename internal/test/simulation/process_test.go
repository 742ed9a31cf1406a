package simulation

import (
	"context"
	"database/sql"
	"slices"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/txlog"
)

// process is a unit of crashes: an application, a job, or the operator's command. It has
// connections and a log of its own.
type process struct {
	// itself is the actor of its background work.
	itself *actor
	log    txlog.Storage
	// Under the network's mutex.
	dead    bool
	conns   []*conn
	closers []func()
}

// app is an application's process: a pool for each data source.
type app struct {
	*process
	pools []*sql.DB
}

// worker is a job's process.
type worker struct {
	*process
	job *asyncjob.Job
}

// kill breaks all connections; messages in flight go on without them.
func (p *process) kill(inFlight []*message) {
	p.dead = true
	for _, c := range p.conns {
		c.lost.Store(true)
		if !slices.ContainsFunc(inFlight, func(m *message) bool { return m.conn == c }) {
			c.s.rollback()
		}
	}
	go p.close()
}

func (p *process) close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
}

// newProcess makes a process with its own storage. Its first questions are answered at once: the
// history begins after them. Even a log that is down answers, as if the process had been restarted
// until the log was up, and then breaks the connection. Otherwise the process would keep one
// connection, and chance would decide which goroutine gets it.
func (w *world) newProcess(name string) *process {
	p := &process{itself: &actor{name: name, free: true}}
	p.itself.process = p
	w.processes = append(w.processes, p)
	if w.database == nil {
		p.log = &memory{w.memory, w.n, p}
		return p
	}
	wires.Store(name, &wire{w.n, p, w.database, home, true})
	defer wires.Delete(name)
	storage, err := txlog.Open(context.Background(), simulated, name, txlog.WithGrace(bound))
	must(err)
	w.n.do(func() {
		p.itself.free = false
		if w.database.down {
			for _, c := range p.conns {
				c.breaks()
			}
		}
	})
	p.log = storage
	p.closers = append(p.closers, func() { _ = storage.Close() })
	return p
}
