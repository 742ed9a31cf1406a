package rig

import (
	"context"
	"database/sql"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// GroupRig is an application that moves money between a north and a south; under WithTx it also has
// a home.
type GroupRig struct {
	*Rig  // the north
	South *Rig
	// Home is the pool of WithTx's transaction, HomePool is the same if its rows are compensated, and
	// AtHome a bare rig of it. They are nil for a staged group; HomePool is nil for SQLite, too.
	Home, HomePool *sql.DB
	AtHome         *Rig
	// proxy, if the rig has one, is between all clients and the north.
	Proxy *testproxy.Proxy
}

// NewGroup makes it for a kind of group.
func NewGroup(t testing.TB, db testdb.DB, how string, change ...func(*bedsql.Config)) *GroupRig {
	t.Helper()
	log := db
	if how == StagedGroup || db.Driver == testdb.DriverMySQL {
		log = testdb.NewLog(t, db.Driver)
	}
	g := &GroupRig{}
	g.Rig = NewWithLog(t, FreshLike(t, db), log, change...)
	g.South = NewWithLog(t, FreshLike(t, db), log, change...)
	for _, r := range []*Rig{g.Rig, g.South} {
		r.Account(100)
	}
	if how == StagedGroup {
		return g
	}
	g.AtHome = &Rig{T: t, DB: db, Bare: db.Open(t)}
	g.AtHome.Account(100)
	g.Home = g.Open(db.DSN)
	if db.Driver != testdb.DriverSQLite {
		g.HomePool = g.Home
	}
	return g
}

// The kinds of compensable groups.
const (
	StagedGroup = "staged"
	WithGroup   = "with a transaction"
)

// Turning is an open group.
type Turning struct {
	*GroupRig
	Tx   *sql.Tx
	Ctx  context.Context
	Soft *bedsql.SoftTransaction
}

const (
	Give = "UPDATE account SET balance = balance + ? WHERE id = 1"
	// Short never has a row to change.
	Short = "UPDATE account SET balance = balance + ? WHERE id = 1 AND balance > 1000"
)

// Moves records moves of 10 from the north to the south and of 1 from home, each with its
// compensation. south is the text for the south.
func (m *Turning) Moves(south string) {
	m.T.Helper()
	undo := m.Soft.Compensation(m.Ctx)
	if m.Tx != nil {
		m.Must(m.Tx, Give, -1)
	}
	m.Stage(m.Ctx, m.Rig.Wrapped, Give, -10)
	m.Stage(undo, m.Rig.Wrapped, Give, 10)
	m.Stage(bedsql.RequireRows(m.Ctx, 1), m.South.Wrapped, south, 10)
	m.Stage(undo, m.South.Wrapped, Give, -10)
	if m.HomePool != nil {
		m.Stage(undo, m.HomePool, Give, 1)
	}
}

func (m *Turning) Commit() {
	m.T.Helper()
	if m.Tx != nil {
		if err := m.Tx.Commit(); err != nil {
			m.T.Fatal(err)
		}
	}
}

func (m *Turning) End() error {
	m.T.Helper()
	m.Commit()
	return m.Soft.End(context.Background())
}

// Want checks the balances of north and south; home has changed by one unless the group was
// compensated.
func (g *GroupRig) Want(north, south int, undone bool) {
	g.T.Helper()
	g.Rig.WantBalances(north)
	g.South.WantBalances(south)
	if g.AtHome == nil {
		return
	}
	home := 99
	if undone && g.HomePool != nil {
		home = 100
	}
	g.AtHome.WantBalances(home)
}

func (g *GroupRig) WantDone() { g.T.Helper(); g.Want(90, 110, false) }

func (g *GroupRig) WantUndone() { g.T.Helper(); g.Want(100, 100, true) }

func (g *GroupRig) WantEmpty() {
	g.T.Helper()
	Eventually(g.T, "the log is empty", func() bool { return g.Left() == 0 })
}
