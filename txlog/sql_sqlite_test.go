package txlog_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestSQLiteAddsAndRemovalsShareATransaction(t *testing.T) {
	t.Parallel()
	// The number of answers to be lost goes down with each write.
	s, writes, _ := openLossy(t, "counted-shared", errors.New("none is lost"))
	old, units := someUnits(6), someUnits(7)
	mustAdd(t, s, old...)
	stale := *old[4]
	stale.Lease.Token = entry.NewID()
	writes.Store(0)
	callers := [][]*entry.Unit{{old[0], old[1]}, {old[2], old[3]}, {&stale, old[5]}}
	remove := together(t, s.Removing(), len(callers), func(i int) error { return s.Remove(t.Context(), callers[i]...) })
	add := together(t, s.Adding(), len(units), func(i int) error { return s.Add(t.Context(), time.Hour, units[i]) })
	removed := make(chan []error, 1)
	go func() { removed <- remove() }()
	mustAll(t, add())
	for i, err := range <-removed {
		if (i == 2) != errors.Is(err, txlog.ErrLeaseLost) || i != 2 && err != nil {
			t.Errorf("removal %d: got error %v, want ErrLeaseLost: %v", i, err, i == 2)
		}
	}
	if n := -writes.Load(); n != 1 {
		t.Errorf("10 callers were served by %d writes, want 1", n)
	}
	if gone := missing(t, s, append(old, units...)...); len(gone) != 5 || gone[stale.ID] {
		t.Errorf("%d units are gone, want all the old ones but that of another owner", len(gone))
	}
	for i, u := range units {
		got, err := s.Get(t.Context(), u.ID)
		if err != nil || got.Unreadable != nil || len(got.Statements) != len(u.Statements) || !got.Leased || !got.InDoubt {
			t.Fatalf("unit %d came back as %+v, %v", i, got, err)
		}
		if d := time.Until(got.NextTry); d > time.Hour+time.Minute || d < time.Hour-time.Minute {
			t.Errorf("the lease of unit %d ends %v from now", i, d)
		}
		if d := time.Since(got.CreatedAt); d > time.Minute || d < -time.Minute {
			t.Errorf("unit %d was added %v ago", i, d)
		}
	}
}

// The content of a row does not depend on its way there.
func TestUnitIsStoredAlikeAloneOrTogether(t *testing.T) {
	t.Parallel()
	s := open(t, testdb.SQLite(t))
	kinds := []func(u *entry.Unit){
		func(*entry.Unit) {},
		func(u *entry.Unit) { u.Receipt = u.ID },
		func(u *entry.Unit) { u.Receipt, u.Fingerprint = "k-1", "f" },
		func(u *entry.Unit) { u.NotReplayable = "it read" },
		func(u *entry.Unit) { u.TransactionID, u.Settings = entry.NewID(), "loc=UTC" },
		func(u *entry.Unit) {
			u.Statements = append(u.Statements, entry.Statement{SQL: "UPDATE b", Params: "[2]"})
		},
	}
	made := func() []*entry.Unit {
		units := make([]*entry.Unit, len(kinds))
		for i, change := range kinds {
			units[i] = unit("UPDATE a")
			units[i].Statements[0].Params = "[1]"
			change(units[i])
		}
		return units
	}
	alone, joined := made(), made()
	for _, u := range alone {
		mustAdd(t, s, u)
	}
	mustAll(t, together(t, s.Adding(), len(joined), func(i int) error { return s.Add(t.Context(), time.Minute, joined[i]) })())
	for i := range kinds {
		a, err := s.Get(t.Context(), alone[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Get(t.Context(), joined[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		if (a.Receipt == a.ID) != (b.Receipt == b.ID) || a.Receipt != a.ID && a.Receipt != b.Receipt ||
			(a.TransactionID == a.ID) != (b.TransactionID == b.ID) ||
			a.DataSource != b.DataSource || a.Settings != b.Settings || a.NotReplayable != b.NotReplayable || a.Fingerprint != b.Fingerprint ||
			a.InDoubt != b.InDoubt || a.Parked != b.Parked || a.Leased != b.Leased || len(a.Statements) != len(b.Statements) || a.Statements[0] != b.Statements[0] {
			t.Errorf("unit %d: alone it is %+v, joined %+v", i, a, b)
		}
	}
}

// keptStatements counts the statements of its connections.
type keptStatements struct {
	driver.Connector
	prepared, open *atomic.Int32
}

func (k keptStatements) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := k.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &keptConn{conn.(wholeSQLite), k}, nil
}

type wholeSQLite interface {
	sqliteConn
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type keptConn struct {
	wholeSQLite
	counts keptStatements
}

func (c *keptConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	stmt, err := c.wholeSQLite.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	c.counts.prepared.Add(1)
	c.counts.open.Add(1)
	return keptStmt{stmt.(sqliteStmt), c.counts.open}, nil
}

type keptStmt struct {
	sqliteStmt
	open *atomic.Int32
}

func (s keptStmt) Close() error {
	s.open.Add(-1)
	return s.sqliteStmt.Close()
}

func TestSQLiteConnectionKeepsItsStatements(t *testing.T) {
	t.Parallel()
	var prepared, left atomic.Int32
	logdb.Register("kept", logdb.Backend{Flavor: sqltext.SQLite, Connector: func(dsn string, _ logdb.Before) (driver.Connector, error) {
		return keptStatements{sqliteDSN(dsn), &prepared, &left}, nil
	}})
	s, err := txlog.Open(t.Context(), "kept", testdb.SQLite(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	round := func() {
		units := someUnits(6)
		mustAll(t, together(t, s.Adding(), 6, func(i int) error { return s.Add(t.Context(), time.Minute, units[i]) })())
		mustAll(t, together(t, s.Removing(), 6, func(i int) error { return s.Remove(t.Context(), units[i]) })())
	}
	round()
	before := prepared.Load()
	round()
	if n := prepared.Load(); n != before {
		t.Errorf("%d statements were prepared anew", n-before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := left.Load(); n != 0 {
		t.Errorf("%d statements were left open", n)
	}
}
