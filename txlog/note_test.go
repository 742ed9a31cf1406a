package txlog

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// A job removes up to 256 units at a time. Recording them as delivered is one more message, and
// hardly larger than their ids.
func TestRecordingDeliveriesIsOneSmallMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db   func(testing.TB) testdb.DB
		each int // bytes for a unit: its id, and in MySQL that of the record
	}{"mysql": {testdb.MySQL, 90}, "postgres": {testdb.Postgres, 45}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.db(t)
			proxy := testproxy.New(t, db.Addr())
			s, err := Open(t.Context(), db.Driver, db.Via(proxy.Addr()).DSN, WithMaxConns(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			var size atomic.Int64
			messages := proxy.Count(func(message []byte) bool {
				size.Add(int64(len(message)))
				return true
			})
			remove := func(delivered bool) (int, int) {
				units := make([]*Unit, 250)
				ids := make([]string, len(units))
				for i := range units {
					units[i] = &Unit{ID: entry.NewID(), DataSource: "orders", Delivered: delivered, Statements: []entry.Statement{{SQL: "UPDATE a"}}}
					ids[i] = units[i].ID
				}
				if err := s.Add(t.Context(), time.Minute, units...); err != nil {
					t.Fatal(err)
				}
				messagesBefore, before := messages(), size.Load()
				if err := s.Remove(t.Context(), units...); err != nil {
					t.Fatal(err)
				}
				n, bytes := messages()-messagesBefore, int(size.Load()-before)
				states, err := s.States(t.Context(), ids...)
				if err != nil {
					t.Fatal(err)
				}
				want := map[bool]entry.State{true: entry.StateDelivered, false: entry.StateUnknown}[delivered]
				for i, got := range states {
					if got != want {
						t.Fatalf("unit %d is %s, want %s", i, got, want)
					}
				}
				return n, bytes
			}
			remove(false) // prepares
			remove(true)
			alone, aloneBytes := remove(false)
			recorded, recordedBytes := remove(true)
			t.Logf("%d messages of %d bytes, %d of %d", alone, aloneBytes, recorded, recordedBytes)
			if recorded != alone+1 {
				t.Errorf("removing delivered units took %d messages, and others %d", recorded, alone)
			}
			if more := recordedBytes - aloneBytes; more > 250*c.each {
				t.Errorf("recording 250 units took %d bytes", more)
			}
		})
	}
}

// Delivered units are removed without a record where the table of attempts is missing, where the
// account has no right to it, and where it refuses rows.
func TestRemovalDoesNotDependOnTheTableOfAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, err := Open(t.Context(), db.Driver, db.DSN, WithoutActivity())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		exec := func(texts ...string) {
			t.Helper()
			for _, text := range texts {
				if _, err := s.db.ExecContext(t.Context(), text); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
		}
		unit := func(delivered bool) *Unit {
			return &Unit{ID: entry.NewID(), DataSource: "orders", Delivered: delivered, Statements: []entry.Statement{{SQL: "UPDATE a"}}}
		}
		removed := func(s *SQLStorage, recorded bool) {
			t.Helper()
			ordered := unit(true)
			ordered.Order = []entry.Order{{Key: "order-k"}}
			for _, units := range [][]*Unit{{unit(true)}, {unit(true), unit(true), unit(false)}, make([]*Unit, 250), {ordered}} {
				ids := make([]string, len(units))
				for i := range units {
					if units[i] == nil {
						units[i] = unit(true)
					}
					ids[i] = units[i].ID
				}
				if err := errors.Join(s.Add(t.Context(), time.Minute, units...), s.Remove(t.Context(), units...)); err != nil {
					t.Fatalf("%d units: %v", len(units), err)
				}
				left := -1
				if err := s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM transaction_log").Scan(&left); err != nil || left != 0 {
					t.Errorf("%d of %d units are left, %v", left, len(units), err)
				}
				if !recorded {
					continue
				}
				states, err := s.States(t.Context(), ids...)
				if err != nil {
					t.Fatal(err)
				}
				for i, state := range states {
					if want := map[bool]entry.State{true: entry.StateDelivered, false: entry.StateUnknown}[units[i].Delivered]; state != want {
						t.Errorf("unit %d of %d is %s, want %s", i+1, len(units), state, want)
					}
				}
			}
		}
		removed(s, true)

		name := "n" + db.Name[max(0, len(db.Name)-20):]
		tables := []string{"transaction_log", "bed_log", "bed_order_key", "bed_order_queue", "bed_activity", "bed_audit", "bed_data_source"}
		low := db
		switch db.Driver {
		case testdb.DriverMySQL:
			exec("CREATE USER "+name+"@'%' IDENTIFIED BY 'x'", "GRANT SELECT ON "+db.Name+".bed_attempt TO "+name+"@'%'")
			t.Cleanup(func() { _, _ = db.Open(t).ExecContext(context.Background(), "DROP USER "+name+"@'%'") })
			for _, table := range tables {
				exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + db.Name + "." + table + " TO " + name + "@'%'")
			}
			low.DSN = strings.Replace(db.DSN, "root@", name+":x@", 1)
		case testdb.DriverPostgres:
			exec("CREATE ROLE "+name+" LOGIN", "GRANT SELECT ON bed_attempt TO "+name)
			t.Cleanup(func() {
				_, _ = db.Open(t).ExecContext(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name)
			})
			exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + strings.Join(tables, ", ") + " TO " + name)
			low.DSN = strings.Replace(db.DSN, "postgres@", name+"@", 1)
		case testdb.DriverSQLite: // has no rights
		}
		if low != db {
			limited, err := Open(t.Context(), low.Driver, low.DSN, WithoutActivity())
			if err != nil {
				t.Fatal(err)
			}
			defer limited.Close()
			removed(limited, false)
			if limited.journal.Off()[journal.Attempts] == nil {
				t.Error("the account was allowed to record")
			}
		}

		refuse := testdb.By[[]string]{
			MySQL: []string{"CREATE TRIGGER never BEFORE INSERT ON bed_attempt FOR EACH ROW SIGNAL SQLSTATE '45000'"},
			Postgres: []string{"CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''never''; END'",
				"CREATE TRIGGER never BEFORE INSERT ON bed_attempt FOR EACH ROW EXECUTE PROCEDURE never()"},
			SQLite: []string{"CREATE TRIGGER never BEFORE INSERT ON bed_attempt BEGIN SELECT RAISE(ROLLBACK, 'never'); END"},
		}
		exec(refuse.For(db.Driver)...)
		removed(s, false)

		exec("DROP TABLE bed_attempt")
		removed(s, false)
		if s.journal.Off()[journal.Attempts] == nil {
			t.Error("the table is still in use")
		}
	})
}
