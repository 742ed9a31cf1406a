package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// groupRig is an application that moves money between a north and a south; under WithTx it also has
// a home.
type groupRig struct {
	*rig  // the north
	south *rig
	// home is the pool of WithTx's transaction, homePool bed's own pool on the same database, and
	// atHome a bare rig of it. They are nil for a staged group; homePool is nil for SQLite, too.
	home, homePool *sql.DB
	atHome         *rig
	// proxy, if the rig has one, is between all clients and the north.
	proxy *testproxy.Proxy
}

// newGroup makes it for a kind of group.
func newGroup(t testing.TB, db testdb.DB, how string, change ...func(*bedsql.Config)) *groupRig {
	t.Helper()
	log := db
	if how == stagedGroup || db.Driver == testdb.DriverMySQL {
		log = freshLike(t, db)
	}
	g := &groupRig{}
	g.rig = newRigWithLog(t, freshLike(t, db), log, change...)
	g.south = newRigWithLog(t, freshLike(t, db), log, change...)
	for _, r := range []*rig{g.rig, g.south} {
		r.account(100)
	}
	if how == stagedGroup {
		return g
	}
	g.atHome = &rig{t: t, db: db, bare: db.Open(t)}
	g.atHome.account(100)
	g.home = g.atHome.bare
	if db.Driver != testdb.DriverSQLite {
		g.homePool = g.open(db.DSN)
	}
	if how == wrappedGroup {
		g.home = g.homePool
	}
	return g
}

// The kinds of compensable groups.
const (
	stagedGroup  = "staged"
	bareGroup    = "with a bare transaction"
	wrappedGroup = "with a wrapped transaction"
)

// eachGroup runs f on every kind of database with every kind of group.
func eachGroup(t *testing.T, f func(t *testing.T, g *groupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) { eachKindOfGroup(t, db, f, change...) })
}

func eachKindOfGroup(t *testing.T, db testdb.DB, f func(t *testing.T, g *groupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	for _, how := range []string{stagedGroup, bareGroup, wrappedGroup} {
		if how == wrappedGroup && db.Driver == testdb.DriverSQLite {
			continue // refused: each would wait for the other's lock
		}
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f(t, newGroup(t, freshLike(t, db), how, change...))
		})
	}
}

// eachGroupBehindProxy is eachGroup on servers, with a proxy before the north.
func eachGroupBehindProxy(t *testing.T, f func(t *testing.T, g *groupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		eachKindOfGroup(t, db, func(t *testing.T, g *groupRig) {
			g.proxy = testproxy.New(t, g.db.Addr())
			g.db = g.db.Via(g.proxy.Addr())
			g.wrapped = g.open(g.db.DSN)
			f(t, g)
		}, change...)
	})
}

// newGroupBehindLogProxy is a staged group with a proxy before its log, north being db.
func newGroupBehindLogProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (g *groupRig, p *testproxy.Proxy, logDB testdb.DB) {
	t.Helper()
	logDB = freshLike(t, db)
	p = testproxy.New(t, logDB.Addr())
	g = &groupRig{rig: newRigWithLog(t, db, logDB.Via(p.Addr()), change...), south: newRigWithLog(t, freshLike(t, db), logDB.Via(p.Addr()), change...)}
	g.rig.account(100)
	g.south.account(100)
	return g, p, logDB
}

// endStandsBeforeRemoval has a group delivered. Its End stops before removing the first entry,
// until release.
func (g *groupRig) endStandsBeforeRemoval(p *testproxy.Proxy) (m *turning, ended <-chan error, release func()) {
	g.t.Helper()
	m = g.group()
	m.moves(give)
	reached, release := p.HoldRun("DELETE FROM transaction_log")
	g.t.Cleanup(release)
	end := make(chan error, 1)
	go func() { end <- m.end() }()
	select {
	case <-reached:
	case err := <-end:
		g.t.Fatalf("End came back before it removed anything: %v", err)
	}
	return m, end, release
}

// turning is an open group.
type turning struct {
	*groupRig
	tx   *sql.Tx
	ctx  context.Context
	soft *bedsql.SoftTransaction
}

func (g *groupRig) group(opts ...bedsql.TxOption) *turning {
	g.t.Helper()
	m := &turning{groupRig: g}
	var err error
	if g.home == nil {
		opts = append(opts, bedsql.Staged())
	} else {
		if m.tx, err = g.home.BeginTx(context.Background(), nil); err != nil {
			g.t.Fatal(err)
		}
		g.t.Cleanup(func() { _ = m.tx.Rollback() })
		opts = append(opts, bedsql.WithTx(m.tx))
	}
	if m.ctx, m.soft, err = bedsql.Begin(context.Background(), opts...); err != nil {
		g.t.Fatal(err)
	}
	return m
}

const (
	give = "UPDATE account SET balance = balance + ? WHERE id = 1"
	// short never has a row to change.
	short = "UPDATE account SET balance = balance + ? WHERE id = 1 AND balance > 1000"
)

// moves records moves of 10 from the north to the south and of 1 from home, each with its
// compensation. south is the text for the south.
func (m *turning) moves(south string) {
	m.t.Helper()
	undo := m.soft.Compensation(m.ctx)
	if m.tx != nil {
		m.must(m.tx, give, -1)
	}
	m.stage(m.ctx, m.rig.wrapped, give, -10)
	m.stage(undo, m.rig.wrapped, give, 10)
	m.stage(bedsql.RequireRows(m.ctx, 1), m.south.wrapped, south, 10)
	m.stage(undo, m.south.wrapped, give, -10)
	if m.homePool != nil {
		m.stage(undo, m.homePool, give, 1)
	}
}

func (m *turning) commit() {
	m.t.Helper()
	if m.tx != nil {
		if err := m.tx.Commit(); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *turning) end() error {
	m.t.Helper()
	m.commit()
	return m.soft.End(context.Background())
}

// want checks the balances of north and south; home has changed by one unless the group was
// compensated.
func (g *groupRig) want(north, south int, undone bool) {
	g.t.Helper()
	g.rig.wantBalances(north)
	g.south.wantBalances(south)
	if g.atHome == nil {
		return
	}
	home := 99
	if undone && g.homePool != nil {
		home = 100
	}
	g.atHome.wantBalances(home)
}

func (g *groupRig) wantDone()   { g.t.Helper(); g.want(90, 110, false) }
func (g *groupRig) wantUndone() { g.t.Helper(); g.want(100, 100, true) }

func (g *groupRig) wantEmpty() {
	g.t.Helper()
	eventually(g.t, "the log is empty", func() bool { return g.left() == 0 })
}

// takeRow has account 1 be another one when free is called: a write to it waits until then, and
// finds no row.
func (r *rig) takeRow() (free func()) {
	r.t.Helper()
	tx, err := r.bare.Begin()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback() })
	r.must(tx, "UPDATE account SET id = 2 WHERE id = ?", 1)
	return func() {
		if err := tx.Commit(); err != nil {
			r.t.Error(err)
		}
	}
}

// worker is a job for all data sources.
func (g *groupRig) worker(change ...func(*asyncjob.Config)) *asyncjob.Job {
	g.t.Helper()
	all := []*rig{g.rig, g.south}
	if g.homePool != nil {
		all = append(all, g.atHome)
	}
	targets := asyncjob.Targets{}
	for _, r := range all {
		tgt := targetOf(g.t, r.db)
		targets[tgt.DataSource] = tgt
	}
	return g.jobFor(targets, change...)
}

// finishes runs the job until the log is empty. All leases have run out before each round.
func (g *groupRig) finishes(change ...func(*asyncjob.Config)) {
	g.t.Helper()
	job := g.worker(change...)
	eventually(g.t, "the job has emptied the log", func() bool {
		g.logAge(time.Minute)
		if _, err := job.RunOnce(context.Background()); err != nil {
			g.t.Fatal(err)
		}
		return g.left() == 0
	})
}

// wantCompensated checks End's report on a group compensated during the call.
func (g *groupRig) wantCompensated(err error) *bedsql.CompensatedError {
	g.t.Helper()
	var c *bedsql.CompensatedError
	if !errors.As(err, &c) || errors.Is(err, bedsql.ErrPending) {
		g.t.Fatalf("End says %v, want that it is compensated", err)
	}
	outcome := bedsql.OutcomeCompensated
	if g.atHome != nil && g.homePool == nil {
		outcome = bedsql.OutcomePartlyRefused // what the transaction did itself stays
	}
	if o := bedsql.OutcomeOf(err); o != outcome {
		g.t.Errorf("the outcome of %v is %v, want %v", err, o, outcome)
	}
	return c
}

// wantTurning checks End's report on a group with an unfinished compensation.
func wantTurning(t testing.TB, err error, parked bool) {
	t.Helper()
	var p *bedsql.PendingError
	var end *bedsql.EndError
	want := bedsql.OutcomeCompensated
	if errors.As(err, &end) && len(end.Delivered) > 0 { // a part without a compensation stays
		want = bedsql.OutcomePartlyRefused
	}
	if !errors.As(err, &p) || !p.Compensating || p.Parked != parked || bedsql.OutcomeOf(err) != want {
		t.Fatalf("End says %v (%v), want that the group is being compensated", err, bedsql.OutcomeOf(err))
	}
}

// compensation returns the group's compensation from the log.
func (m *turning) compensation() *txlog.Unit {
	m.t.Helper()
	u, err := m.storage.Get(context.Background(), m.soft.ID())
	if err != nil {
		m.t.Fatal(err)
	}
	return u
}

// hurried cuts off attempts waiting for a lock.
func hurried(c *bedsql.Config) { c.AttemptTimeout = 500 * time.Millisecond }

// hurries is hurried for one part of a group: the attempts at the others have all their time.
func (r *rig) hurries() {
	r.t.Helper()
	hurried(&r.cfg)
	r.wrapped = r.open(r.db.DSN)
}
