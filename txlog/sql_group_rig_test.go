package txlog_test

import (
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// oneWrite lets one joined write be under way at a time.
var oneWrite = txlog.WithWritesInFlight(1, 1)

// together holds the writes, calls f concurrently for each number below n, and waits until n
// requests are queued. wait releases them and returns the errors.
func together(t *testing.T, g txlog.Joining, n int, f func(i int) error) (wait func() []error) {
	t.Helper()
	release := g.Hold()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	g.Await(t, n)
	return func() []error {
		release()
		group.Wait()
		return errs
	}
}

func someUnits(n int) []*entry.Unit {
	units := make([]*entry.Unit, n)
	for i := range units {
		units[i] = unit([]string{"UPDATE a", "UPDATE b", "UPDATE c"}[:1+i%3]...)
	}
	return units
}

func mustAdd(t *testing.T, s *txlog.SQLStorage, units ...*entry.Unit) {
	t.Helper()
	if err := s.Add(t.Context(), time.Minute, units...); err != nil {
		t.Fatal(err)
	}
}

func mustAll(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("caller %d: %v", i, err)
		}
	}
}

func missing(t *testing.T, s *txlog.SQLStorage, units ...*entry.Unit) map[string]bool {
	t.Helper()
	var ids []string
	for _, u := range units {
		ids = append(ids, u.ID)
	}
	gone, err := s.Missing(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, id := range gone {
		set[id] = true
	}
	return set
}

// refuse makes the log's database refuse one data source.
func refuse(t *testing.T, db testdb.DB, dataSource string) {
	t.Helper()
	text := "ALTER TABLE transaction_log ADD CONSTRAINT refused CHECK (data_source <> '" + dataSource + "')"
	if db.Driver == testdb.DriverSQLite {
		text = "CREATE TRIGGER refused BEFORE INSERT ON transaction_log WHEN NEW.data_source = '" + dataSource + "' BEGIN SELECT RAISE(ABORT, 'refused'); END"
	}
	if _, err := db.Open(t).Exec(text); err != nil {
		t.Fatal(err)
	}
}

// eachProxied runs f on each server behind a proxy. execute matches the execution
// of a prepared statement.
func eachProxied(t *testing.T, f func(t *testing.T, db testdb.DB, p *testproxy.Proxy, execute func([]byte) bool)) {
	t.Helper()
	for _, kind := range []struct {
		fresh   func(testing.TB) testdb.DB
		execute func([]byte) bool
	}{{testdb.MySQL, testproxy.MySQLExecute}, {testdb.Postgres, testproxy.PostgresExecute}} {
		db := kind.fresh(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			f(t, db, testproxy.New(t, db.Addr()), kind.execute)
		})
	}
}
