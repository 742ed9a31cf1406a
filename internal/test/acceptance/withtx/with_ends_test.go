package withtx

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// eachMySQLWith is eachWith for MySQL alone, whose DDL commits implicitly.
func eachMySQLWith(t *testing.T, f func(t *testing.T, w *rig.WithRig)) {
	t.Helper()
	rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
		f(t, rig.NewWith(t, testdb.NewLog(t, testdb.DriverMySQL), guarantee))
	})
}

func TestDDLIsRefusedOnceWithHasRecorded(t *testing.T) {
	t.Parallel()
	eachMySQLWith(t, func(t *testing.T, w *rig.WithRig) {
		b := w.Begun()
		takes(b)
		b.Records(1)
		if _, err := b.Tx.Exec("CREATE TABLE other (id INT)"); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("DDL says %v", err)
		}
		b.Records(1)
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		w.WantBalances(102, 100)
		w.WantEmpty()
		if n := w.AtHome(); n != 99 {
			t.Errorf("account 1 holds %d", n)
		}
	})
}

func TestEndReportsAnEntryThatWasDiscarded(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		if w.ExactlyOnce() {
			return // End delivers it without asking the log
		}
		b := w.Begun()
		takes(b)
		b.Records(1)
		b.Commit()
		units, err := w.Storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 1 {
			t.Fatalf("the log holds %d units: %v", len(units), err)
		}
		if err := w.Storage.Discard(t.Context(), units[0].ID); err != nil {
			t.Fatal(err)
		}
		// "Refused" would say that the job had not begun to deliver it.
		if err := b.End(); !errors.Is(err, bedsql.ErrUnknownOutcome) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown || !strings.Contains(err.Error(), units[0].ID) {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		w.WantBalances(100, 100)
	})
}

// bed cannot see what is done to the transaction by the bare connection.
func TestRawAccessAndRecordsOfWithExcludeEachOther(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		conn, err := w.Home.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw := func() error {
			return conn.Raw(func(dc any) error {
				_, err := dc.(*bedsql.Conn).Raw(t.Context())
				return err
			})
		}
		begun := func() *rig.Begun {
			tx, err := conn.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			return w.With(tx, tx)
		}
		b := begun()
		b.Records(1)
		if err := raw(); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("after a record, raw access says %v", err)
		}
		b.Commit()
		if err := b.End(); err != nil {
			t.Errorf("End says %v", err)
		}
		b = begun()
		if err := raw(); err != nil {
			t.Errorf("before a record, raw access says %v", err)
		}
		takes(b)
		for range 2 { // and in the connection's next transaction
			if _, err := w.Rig.Wrapped.ExecContext(b.Ctx, w.Q(rig.Increment), 1, 2); !errors.Is(err, bedsql.ErrStaged) {
				t.Errorf("after raw access, a write says %v", err)
			}
			b.Commit()
			if err := b.End(); err != nil {
				t.Errorf("End says %v", err)
			}
			b = begun()
		}
		if err := b.Tx.Rollback(); err != nil {
			t.Error(err)
		}
		w.WantBalances(101, 100)
		w.WantEmpty()
	})
}

// When its context ends, database/sql reports a transaction as done before rolling it back.
func TestEndKnowsThatTheContextRollsBack(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tx, err := w.Home.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			b := w.With(tx, tx)
			b.Records(1)
			cancel()
			if err := tx.Commit(); err == nil {
				t.Fatal("committed under a context that had ended")
			}
			if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) {
				t.Errorf("End says %v", err)
			}
		}
		w.WantBalances(100, 100)
	})
}

func TestEndWithoutTimeLeavesTheWritesToTheJob(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 8 {
			b := w.Begun()
			b.Records(1)
			b.Commit()
			if err := b.Soft.End(ended); !errors.Is(err, bedsql.ErrPending) {
				t.Errorf("End says %v", err)
			}
		}
	})
}

// After an End before Commit the write may still be committed.
func TestKeyOfWithStaysTakenUntilTheRollback(t *testing.T) {
	t.Parallel()
	rig.EachWith(t, func(t *testing.T, w *rig.WithRig) {
		request := func(key string) context.Context {
			ctx, k := bedsql.WithIdempotencyKey(t.Context(), key)
			k.SetFingerprint(key)
			return ctx
		}
		adds := func(ctx context.Context) error {
			_, err := w.Rig.Wrapped.ExecContext(ctx, w.Q(rig.Increment), 1, 2)
			return err
		}
		for key, end := range map[string]func(*sql.Tx) error{
			"committed": (*sql.Tx).Commit, "rolled back": (*sql.Tx).Rollback,
			"rolled back after a SET": func(tx *sql.Tx) error {
				w.Must(tx, map[string]string{testdb.DriverMySQL: "SET @a = 1", testdb.DriverPostgres: "SET LOCAL lock_timeout = 1000"}[w.DB.Driver])
				return tx.Rollback()
			},
			"refused": func(tx *sql.Tx) error {
				if _, err := tx.ExecContext(bedsql.RequireRows(t.Context(), 2), "UPDATE account SET balance = 0 WHERE id = 1"); err == nil {
					t.Error("two rows were changed")
				}
				if err := tx.Commit(); err == nil {
					return errors.New("it was committed")
				}
				return nil
			},
		} {
			under := request(key)
			tx, err := w.Home.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, soft, err := bedsql.Begin(under, bedsql.WithTx(tx))
			if err != nil {
				t.Fatal(err)
			}
			w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
			if err := soft.End(t.Context()); !errors.Is(err, bedsql.ErrNotCommitted) {
				t.Errorf("End says %v", err)
			}
			if err := end(tx); err != nil {
				t.Fatal(err)
			}
			if key == "committed" {
				rig.WantUnusable(t, key, adds(under))
				continue
			}
			for _, ctx := range []context.Context{under, request(key)} { // and sent again
				if err := adds(ctx); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
		w.Delivers()
		w.WantBalances(101, 103)
	})
}
