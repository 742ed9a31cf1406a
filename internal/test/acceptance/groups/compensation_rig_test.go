package groups

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// eachGroup runs f on every kind of database with every kind of group.
func eachGroup(t *testing.T, f func(t *testing.T, g *rig.GroupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) { eachKindOfGroup(t, db, f, change...) })
}

func eachKindOfGroup(t *testing.T, db testdb.DB, f func(t *testing.T, g *rig.GroupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	for _, how := range []string{rig.StagedGroup, rig.WithGroup} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f(t, rig.NewGroup(t, testdb.NewLog(t, db.Driver), how, change...))
		})
	}
}

// eachGroupBehindProxy is eachGroup on servers, with a proxy before the north.
func eachGroupBehindProxy(t *testing.T, f func(t *testing.T, g *rig.GroupRig), change ...func(*bedsql.Config)) {
	t.Helper()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		eachKindOfGroup(t, db, func(t *testing.T, g *rig.GroupRig) {
			g.Proxy = testproxy.New(t, g.DB.Addr())
			g.Proxy.SpareErasing()
			g.DB = g.DB.Via(g.Proxy.Addr())
			g.Wrapped = g.Open(g.DB.DSN)
			f(t, g)
		}, change...)
	})
}

// newGroupBehindLogProxy is a staged group with a proxy before its log, north being db.
func newGroupBehindLogProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (g *rig.GroupRig, p *testproxy.Proxy, logDB testdb.DB) {
	t.Helper()
	logDB = testdb.NewLog(t, db.Driver)
	p = testproxy.New(t, logDB.Addr())
	g = &rig.GroupRig{Rig: rig.NewWithLog(t, db, logDB.Via(p.Addr()), change...), South: rig.NewWithLog(t, rig.FreshLike(t, db), logDB.Via(p.Addr()), change...)}
	g.Rig.Account(100)
	g.South.Account(100)
	return g, p, logDB
}

// endStandsBeforeRemoval has a group delivered. Its End stops before removing the first entry,
// until release.
func endStandsBeforeRemoval(g *rig.GroupRig, p *testproxy.Proxy) (m *rig.Turning, ended <-chan error, release func()) {
	g.T.Helper()
	m = group(g)
	m.Moves(rig.Give)
	reached, release := p.HoldRun("DELETE FROM transaction_log")
	g.T.Cleanup(release)
	end := make(chan error, 1)
	go func() { end <- m.End() }()
	select {
	case <-reached:
	case err := <-end:
		g.T.Fatalf("End came back before it removed anything: %v", err)
	}
	return m, end, release
}

func group(g *rig.GroupRig, opts ...bedsql.TxOption) *rig.Turning {
	g.T.Helper()
	m := &rig.Turning{GroupRig: g}
	var err error
	if g.Home == nil {
		opts = append(opts, bedsql.Staged())
	} else {
		if m.Tx, err = g.Home.BeginTx(context.Background(), nil); err != nil {
			g.T.Fatal(err)
		}
		g.T.Cleanup(func() { _ = m.Tx.Rollback() })
		opts = append(opts, bedsql.WithTx(m.Tx))
	}
	if m.Ctx, m.Soft, err = bedsql.Begin(context.Background(), opts...); err != nil {
		g.T.Fatal(err)
	}
	return m
}

// takeRow has account 1 be another one when free is called: a write to it waits until then, and
// finds no row.
func takeRow(r *rig.Rig) (free func()) {
	r.T.Helper()
	tx, err := r.Bare.Begin()
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = tx.Rollback() })
	r.Must(tx, "UPDATE account SET id = 2 WHERE id = ?", 1)
	return func() {
		if err := tx.Commit(); err != nil {
			r.T.Error(err)
		}
	}
}

// worker is a job for all data sources.
func worker(g *rig.GroupRig, change ...func(*asyncjob.Config)) *asyncjob.Job {
	g.T.Helper()
	all := []*rig.Rig{g.Rig, g.South}
	if g.HomePool != nil {
		all = append(all, g.AtHome)
	}
	targets := asyncjob.Targets{}
	for _, r := range all {
		tgt := rig.TargetOf(g.T, r.DB)
		targets[tgt.DataSource] = tgt
	}
	return g.JobFor(targets, change...)
}

// finishes runs the job until the log is empty. All leases have run out before each round.
func finishes(g *rig.GroupRig, change ...func(*asyncjob.Config)) {
	g.T.Helper()
	job := worker(g, change...)
	rig.Eventually(g.T, "the job has emptied the log", func() bool {
		g.LogAge(time.Minute)
		if _, err := job.RunOnce(context.Background()); err != nil {
			g.T.Fatal(err)
		}
		return g.Left() == 0
	})
}

// wantCompensated checks End's report on a group compensated during the call.
func wantCompensated(g *rig.GroupRig, err error) *bedsql.CompensatedError {
	g.T.Helper()
	var c *bedsql.CompensatedError
	if !errors.As(err, &c) || errors.Is(err, bedsql.ErrPending) {
		g.T.Fatalf("End says %v, want that it is compensated", err)
	}
	outcome := bedsql.OutcomeCompensated
	if g.AtHome != nil && g.HomePool == nil {
		outcome = bedsql.OutcomePartlyRefused // what the transaction did itself stays
	}
	if o := bedsql.OutcomeOf(err); o != outcome {
		g.T.Errorf("the outcome of %v is %v, want %v", err, o, outcome)
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
func compensation(m *rig.Turning) *entry.Unit {
	m.T.Helper()
	u, err := m.Storage.Get(context.Background(), m.Soft.ID())
	if err != nil {
		m.T.Fatal(err)
	}
	return u
}

// hurried cuts off attempts waiting for a lock.
func hurried(c *bedsql.Config) { c.AttemptTimeout = 2 * time.Second }

// hurries is hurried for one part of a group: the attempts at the others have all their time.
func hurries(r *rig.Rig) {
	r.T.Helper()
	hurried(&r.Cfg)
	r.Wrapped = r.Open(r.DB.DSN)
}
