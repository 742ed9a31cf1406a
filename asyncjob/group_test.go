package asyncjob

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// groupRig is a log, and one database behind two data sources.
type groupRig struct {
	log     txlog.Storage
	kept    *sql.DB // where it is
	pool    *sql.DB
	target  delivery.Target
	targets Targets
}

func eachGroup(t *testing.T, f func(t *testing.T, r *groupRig)) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) { f(t, newGroupRig(t, db)) })
}

func newGroupRig(t *testing.T, db testdb.DB) *groupRig {
	t.Helper()
	kept := testdb.New(t, db.Driver)
	log, err := txlog.Open(t.Context(), kept.Driver, kept.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	r := &groupRig{log: log, kept: kept.Open(t), pool: table(t, db), target: realTarget(t, db)}
	r.targets = Targets{"orders": r.target, "stock": r.target}
	return r
}

// add adds a due group: it inserts the rows 1 on orders and 2 on stock, and its compensation
// deletes exactly these.
func (r *groupRig) add(t *testing.T, change func(k *entry.Unit, f []*entry.Unit)) (k *entry.Unit, f []*entry.Unit) {
	t.Helper()
	id := entry.NewID()
	k = &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Undo: &entry.Undo{}}
	for i, name := range []string{"orders", "stock"} {
		u := &entry.Unit{ID: entry.NewID(), TransactionID: id, DataSource: name, Settings: r.target.Settings}
		u.Receipt = u.ID
		if r.target.Dialect.Receipt != nil {
			u.Receipt = r.target.Dialect.Receipt(u.ID)
		}
		u.Statements = []entry.Statement{{SQL: fmt.Sprintf("INSERT INTO account (id, name) VALUES (%d, '%s')", i+1, name), Part: i + 1}}
		f = append(f, u)
		k.Undo.Parts = append(k.Undo.Parts, entry.Part{Unit: u.ID, Receipt: u.Receipt, DataSource: name, Settings: u.Settings})
		k.Statements = append(k.Statements, entry.Statement{SQL: fmt.Sprintf("DELETE FROM account WHERE id = %d", i+1), Required: entry.Exactly(1), Part: i + 1})
	}
	if change != nil {
		change(k, f)
	}
	r.write(t, append(f, k)...)
	return k, f
}

// write adds due units.
func (r *groupRig) write(t *testing.T, units ...*entry.Unit) {
	t.Helper()
	if err := r.log.Add(t.Context(), time.Hour, units...); err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		if err := r.log.Release(t.Context(), u, entry.Verdict{InDoubt: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// rounds runs the job until the log is as wanted.
func (r *groupRig) rounds(t *testing.T, cfg Config, what string, reached func() bool) {
	t.Helper()
	job := newJob(t, r.log, r.targets, cfg)
	for end := time.Now().Add(patience); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			left, _ := r.log.List(t.Context(), txlog.Filter{})
			for _, u := range left {
				t.Logf("left: %+v", u)
			}
			t.Fatalf("it did not come to pass that %s", what)
		}
		runOnce(t, job)
	}
}

func (r *groupRig) empty(t *testing.T) func() bool {
	return func() bool {
		left, err := r.log.List(t.Context(), txlog.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	}
}

// wantVoid checks that all receipts exist and are void.
func (r *groupRig) wantVoid(t *testing.T, group string) {
	t.Helper()
	var all, void int
	if err := r.pool.QueryRowContext(t.Context(), "SELECT COUNT(*), SUM(void) FROM bed_receipt WHERE unit_id = '"+group+"'").Scan(&all, &void); err != nil || all != 2 || void != 2 {
		t.Errorf("%d of %d receipts are void, want 2 of 2 (%v)", void, all, err)
	}
}

func quick() Config {
	return Config{RetryDelay: time.Millisecond, MaxDeliveryTryTimes: 5, MaxDeliveryTryDelay: -1}
}

func TestARefusedPartTurnsItsGroupBack(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		mustExec(t, r.pool, "INSERT INTO account VALUES (2, 'somebody')")
		k, f := r.add(t, nil)
		r.rounds(t, quick(), "the group is compensated", r.empty(t))
		if n := rows(t, r.pool, "1 = 1"); n != 1 || rows(t, r.pool, "name = 'somebody'") != 1 {
			t.Errorf("there are %d rows, want somebody's alone", n)
		}
		r.wantVoid(t, k.ID)
		states, err := r.log.States(t.Context(), f[0].ID, f[1].ID)
		if err != nil || states[0] != entry.StateDiscarded || states[1] != entry.StateDiscarded {
			t.Errorf("the states are %v (%v)", states, err)
		}
	})
}

func TestAGroupThatIsDeliveredIsCompleted(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		r.add(t, nil)
		r.rounds(t, quick(), "all is delivered", func() bool { return rows(t, r.pool, "1 = 1") == 2 })
		// Only the group's writer could have been quicker. Now no one is left to compensate it.
		left, err := r.log.List(t.Context(), txlog.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range left {
			if err := r.log.Retry(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		}
		r.rounds(t, quick(), "the log is empty", r.empty(t))
		if n := rows(t, r.pool, "1 = 1"); n != 2 {
			t.Errorf("%d rows are left, want 2", n)
		}
	})
}

func TestAHalfUndoneGroupGoesOnWhenItIsRetried(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		k, _ := r.add(t, nil)
		r.rounds(t, quick(), "all is delivered", func() bool { return rows(t, r.pool, "1 = 1") == 2 })
		mustExec(t, r.pool, "DELETE FROM account WHERE id = 1") // so that undoing it changes no row
		if _, err := r.log.Compensate(t.Context(), k.ID, 0, "compensated by an operator"); err != nil {
			t.Fatal(err)
		}
		parked := func() bool {
			u, err := r.log.Get(t.Context(), k.ID)
			return err == nil && u.HalfCompensated()
		}
		cfg, hook := logged()
		cfg.RetryDelay, cfg.MaxDeliveryTryDelay = time.Millisecond, -1
		r.rounds(t, cfg, "it is half compensated", parked)
		u, _ := r.log.Get(t.Context(), k.ID)
		if !strings.Contains(u.LastError, "exactly 1 row") || u.DataSource != "orders" || u.Undo.Cause != "compensated by an operator" {
			t.Errorf("it says %q on %s, of a group that turned because %q", u.LastError, u.DataSource, u.Undo.Cause)
		}
		said := false
		for _, e := range hook.AllEntries() {
			said = said || strings.Contains(e.Message, "half compensated")
		}
		if !said {
			t.Error("no event says that it is half compensated")
		}
		if rows(t, r.pool, "id = 2") != 0 {
			t.Error("the last part is not undone")
		}
		mustExec(t, r.pool, "INSERT INTO account VALUES (1, 'again')")
		if err := r.log.Retry(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		r.rounds(t, quick(), "it is undone", r.empty(t))
		if n := rows(t, r.pool, "1 = 1"); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		r.wantVoid(t, k.ID)
	})
}

func TestAGroupTurnsBackWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		delete(r.targets, "stock") // cannot be delivered to
		k, f := r.add(t, func(k *entry.Unit, f []*entry.Unit) {
			for _, u := range append(f, k) {
				u.CompensateAfter = time.Hour
			}
		})
		r.rounds(t, quick(), "the first part is delivered", func() bool { return rows(t, r.pool, "id = 1") == 1 })
		mustExec(t, r.kept, fmt.Sprintf("UPDATE transaction_log SET creation_time = creation_time - %d", time.Hour.Milliseconds()))
		r.rounds(t, quick(), "it turns", func() bool {
			for _, u := range []string{k.ID, f[1].ID} { // who was looked at rests for long
				_ = r.log.Retry(t.Context(), u)
			}
			u, err := r.log.Get(t.Context(), k.ID)
			return err == nil && u.Compensating()
		})
		if n := rows(t, r.pool, "id = 1"); n != 1 {
			t.Error("the first part was undone before the last one")
		}
		r.targets["stock"] = r.target
		_ = r.log.Retry(t.Context(), k.ID)
		r.rounds(t, quick(), "it is undone", r.empty(t))
		if n := rows(t, r.pool, "1 = 1"); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		r.wantVoid(t, k.ID)
	})
}

// The compensation relies on the receipts of parts that left the log long ago.
func TestReceiptsOutliveTheWayBackOfTheirGroup(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		k, _ := r.add(t, nil)
		cfg := quick()
		cfg.PurgeInterval = time.Nanosecond
		r.rounds(t, cfg, "all is delivered", func() bool { return rows(t, r.pool, "1 = 1") == 2 })
		old := func() { mustExec(t, r.pool, "UPDATE bed_receipt SET creation_time = 1, keep_until = 1, log_gone = 1") }
		left := func() (n int) {
			if err := r.pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bed_receipt").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		turned, err := r.log.Compensate(t.Context(), k.ID, time.Hour, "no")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.log.Release(t.Context(), turned, entry.Verdict{Park: true}); err != nil {
			t.Fatal(err)
		}
		add(t, r.log, "orders", "", func(u *entry.Unit) { // so that there is a round
			u.Settings, u.Statements = r.target.Settings, []entry.Statement{{SQL: "INSERT INTO account (id, name) VALUES (7, 'x')"}}
		})
		old()
		r.rounds(t, cfg, "a round was made", func() bool { return rows(t, r.pool, "id = 7") == 1 })
		if n := left(); n != 2 {
			t.Fatalf("%d receipts are left of a group that is half compensated, want 2", n)
		}
		if err := r.log.Discard(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		r.rounds(t, cfg, "they are purged", func() bool { old(); return left() == 0 })
	})
}

// A late write to the log restores the original group.
func TestAGroupThatComesBackAfterItWasUndoneIsNotDone(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		k, f := r.add(t, nil)
		if _, err := r.log.Compensate(t.Context(), k.ID, 0, "no"); err != nil {
			t.Fatal(err)
		}
		r.rounds(t, quick(), "it is undone", r.empty(t))
		r.wantVoid(t, k.ID)
		for _, u := range append(f, k) {
			u.Lease = entry.Lease{}
		}
		r.write(t, append(f, k)...)
		r.rounds(t, quick(), "the log is empty", func() bool {
			_ = r.log.Retry(t.Context(), k.ID)
			return r.empty(t)()
		})
		if n := rows(t, r.pool, "1 = 1"); n != 0 {
			t.Errorf("%d rows were written", n)
		}
		r.wantVoid(t, k.ID)
	})
}

// By its receipt, End had decided a part as refused, and died before reporting that to the log.
func TestAPartThatWasDecidedNotToBeTurnsItsGroupBack(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		delete(r.targets, "stock")
		k, f := r.add(t, nil)
		r.rounds(t, quick(), "the first part is delivered", func() bool { return rows(t, r.pool, "id = 1") == 1 })
		mustExec(t, r.pool, fmt.Sprintf("INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('%s', '%s', '%s', 1, 1, 9000000000000)",
			f[1].Receipt, k.ID, r.log.Identity()))
		r.targets["stock"] = r.target
		r.rounds(t, quick(), "the log is empty", func() bool {
			for _, u := range []string{k.ID, f[1].ID} {
				_ = r.log.Retry(t.Context(), u)
			}
			return r.empty(t)()
		})
		if n := rows(t, r.pool, "1 = 1"); n != 0 {
			t.Errorf("%d rows are left of a group of which a part never will be", n)
		}
		r.wantVoid(t, k.ID)
	})
}

// A late write to the log restores a group that was delivered in time.
func TestAGroupThatComesBackAfterItsTimeIsNotUndone(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, r *groupRig) {
		k, f := r.add(t, nil)
		r.rounds(t, quick(), "all is delivered", func() bool { return rows(t, r.pool, "1 = 1") == 2 })
		if err := r.log.Complete(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		for _, all := range [][]*entry.Unit{{k, f[0], f[1]}, {f[1], f[0], k}} { // the first is due first
			for _, u := range all {
				u.Lease, u.CompensateAfter = entry.Lease{}, time.Millisecond
			}
			r.write(t, all...)
			r.rounds(t, quick(), "the log is empty", func() bool {
				_ = r.log.Retry(t.Context(), k.ID)
				return r.empty(t)()
			})
			if n := rows(t, r.pool, "1 = 1"); n != 2 {
				t.Fatalf("%d rows are left, want both", n)
			}
		}
	})
}

// Nor is it while its receipts cannot be asked for.
func TestAGroupIsNotUndoneForAQuestionThatFailed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverSQLite {
			return // there is no network
		}
		r := newGroupRig(t, db)
		k, f := r.add(t, nil)
		r.rounds(t, quick(), "all is delivered", func() bool { return rows(t, r.pool, "1 = 1") == 2 })
		if err := r.log.Complete(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		proxy := testproxy.New(t, db.Addr())
		through := realTarget(t, db.Via(proxy.Addr()))
		r.targets = Targets{"orders": through, "stock": through}
		for _, all := range [][]*entry.Unit{{k, f[0], f[1]}, {f[1], f[0], k}} {
			for _, u := range all {
				u.Lease, u.CompensateAfter = entry.Lease{}, time.Millisecond
			}
			struck := proxy.CutBefore(testproxy.Text("FROM bed_receipt"))
			r.write(t, all...)
			r.rounds(t, quick(), "the log is empty", func() bool {
				_ = r.log.Retry(t.Context(), k.ID)
				return r.empty(t)()
			})
			select {
			case <-struck:
			default:
				t.Error("no question was cut")
			}
			if n := rows(t, r.pool, "1 = 1"); n != 2 {
				t.Fatalf("%d rows are left, want both", n)
			}
		}
	})
}

// A refused part is not parked for one failed lookup, for then no compensation would start.
func TestRefusedPartCompensatesItsGroupAfterAFailedLookup(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverSQLite {
			return // there is no network
		}
		r := newGroupRig(t, db)
		proxy := testproxy.New(t, db.Addr())
		r.targets["stock"] = realTarget(t, db.Via(proxy.Addr()))
		struck := proxy.CutBefore(testproxy.Text("SELECT void"))
		r.add(t, func(_ *entry.Unit, f []*entry.Unit) {
			f[1].Statements[0].SQL = "INSERT INTO account (id, no_such_column) VALUES (2, 'stock')"
		})
		r.rounds(t, quick(), "the log is empty", func() bool {
			parked, err := r.log.List(t.Context(), txlog.Filter{Parked: true})
			if err != nil || len(parked) > 0 {
				t.Fatalf("parked: %v, %v", parked, err)
			}
			return r.empty(t)()
		})
		select {
		case <-struck:
		default:
			t.Error("no lookup was cut")
		}
		if n := rows(t, r.pool, "1 = 1"); n != 0 {
			t.Errorf("%d rows are left of a compensated group", n)
		}
	})
}

// A receipt that can never be looked up does not prevent the group's compensation.
func TestAGroupTurnsThoughAPartCannotBeAskedFor(t *testing.T) {
	t.Parallel()
	for other := range 2 {
		eachGroup(t, func(t *testing.T, r *groupRig) {
			k, _ := r.add(t, func(k *entry.Unit, f []*entry.Unit) {
				f[other].Account, k.Undo.Parts[other].Account = "another", "another"
				f[other].CompensateAfter, k.CompensateAfter = time.Millisecond, time.Millisecond
			})
			r.rounds(t, quick(), "the group turns", func() bool {
				got, err := r.log.Get(t.Context(), k.ID)
				return errors.Is(err, txlog.ErrNotFound) || err == nil && got.Compensating()
			})
		})
	}
}
