package groups

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestStagedRefusesWhatItCannotRecord(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		returning := "INSERT INTO account VALUES (9, 9) RETURNING id"
		session := testdb.By[string]{
			MySQL:    "UPDATE account SET balance = (@v := 5) WHERE id = 1",
			Postgres: "UPDATE account SET balance = currval('s') WHERE id = 1",
			SQLite:   "UPDATE account SET balance = last_insert_rowid() WHERE id = 1",
		}.For(db.Driver)
		ctx, st := rig.Staged(t)
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, bedsql.ErrStaged) {
				t.Errorf("%s: %v, want ErrStaged", what, err)
			}
		}
		inside := func(on interface {
			rig.Executor
			QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		},
		) {
			t.Helper()
			rows, err := on.QueryContext(ctx, returning)
			if err == nil {
				_ = rows.Close()
			}
			check("RETURNING", err)
			for _, query := range []string{session, "UPDATE account SET balance = 1; UPDATE account SET balance = 2"} {
				_, err := on.ExecContext(ctx, query)
				check(query, err)
			}
		}
		inside(r.Wrapped)
		begun := r.Conn()
		r.Must(begun, "BEGIN")
		_, err := begun.ExecContext(ctx, rig.AddOne)
		check("a write behind BEGIN", err)
		_ = begun.Close()
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		inside(tx)
		for _, query := range []string{"COMMIT", "ROLLBACK", "ROLLBACK TO SAVEPOINT never_set"} {
			_, err := tx.ExecContext(ctx, query)
			check(query, err)
		}
		if _, err := tx.ExecContext(bedsql.Unlogged(ctx), rig.AddOne); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("Skip inside a local transaction that only records: %v, want ErrStaged", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if _, err := r.Wrapped.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("a local transaction with an isolation level: %v, want ErrStaged", err)
		}
		// A transaction that was begun outside of it, and a pinned connection.
		outside := r.Begin()
		_, err = outside.ExecContext(ctx, rig.AddOne)
		check("in a transaction begun outside", err)
		if err := outside.Rollback(); err != nil {
			t.Error(err)
		}
		pinned := r.Conn()
		rig.RawExec(r, pinned, "SELECT 1")
		_, err = pinned.ExecContext(ctx, rig.AddOne)
		check("on a pinned connection", err)
		if tx, err := pinned.BeginTx(ctx, nil); err != nil {
			check("BeginTx on a pinned connection", err)
		} else {
			_, err := tx.ExecContext(ctx, rig.AddOne)
			check("in a transaction on a pinned connection", err)
			_ = tx.Rollback()
		}
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		r.WantBalances(100)
		r.WantNoLog()
	})
}

func TestStagedDataSourcesWithDifferentLogsAreRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		one, other := rig.New(t, db), rig.New(t, rig.FreshLike(t, db))
		one.Account(100)
		other.Account(100)
		ctx, st := rig.Staged(t)
		one.Stage(ctx, one.Wrapped, rig.Increment, 1, 1)
		if _, err := other.Wrapped.ExecContext(ctx, other.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "different transaction logs") {
			t.Errorf("Exec: %v, want ErrStaged", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		one.WantBalances(101)
		other.WantBalances(100)
	})
}

func TestStagedDataSourceWithDifferentSettingsIsRefused(t *testing.T) {
	t.Parallel()
	for driver, param := range (testdb.By[[2]string]{
		MySQL: [2]string{"loc", "Asia/Tokyo"}, Postgres: [2]string{"TimeZone", "Asia/Tokyo"}, SQLite: [2]string{"_time_format", "sqlite"},
	}).All() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, driver)
			r := rig.New(t, db)
			r.Account(100)
			other := r.Open(rig.WithParam(db, param[0], param[1]).DSN)
			ctx, st := rig.Staged(t)
			r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
			if _, err := other.ExecContext(ctx, r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "settings") {
				t.Errorf("Exec: %v, want ErrStaged", err)
			}
			// The same settings through another pool are the same data source.
			r.Stage(ctx, r.Open(db.DSN), rig.Increment, 1, 1)
			if err := st.End(context.Background()); err != nil {
				t.Error(err)
			}
			r.WantBalances(102)
		})
	}
}

func TestStagedTooManyWritesAreRefusedWhenStaged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, func(c *bedsql.Config) { c.MaxUnitStatements, c.MaxUnitBytes = 3, 2000 })
		r.Account(100)
		ctx, st := rig.Staged(t)
		for range 2 {
			r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		}
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Stage(ctx, tx, rig.Increment, 10, 1)
		r.Stage(ctx, tx, rig.Increment, 10, 1)
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "MaxUnitStatements") {
			t.Errorf("Commit of the fourth: %v, want ErrStaged that names the setting", err)
		}
		if _, err := r.Wrapped.ExecContext(ctx, r.Q("/* "+strings.Repeat("x", 2000)+" */"+rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), "MaxUnitBytes") {
			t.Errorf("a large one: %v, want ErrStaged that names the setting", err)
		}
		r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		if _, err := r.Wrapped.ExecContext(ctx, r.Q(rig.Increment), 1, 1); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("the fourth: %v, want ErrStaged", err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(103)
		r.WantNoLog()
	})
}

func TestStagedInMemoryDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	pool := r.Open("file::memory:?bedDataSource=memory")
	pool.SetMaxOpenConns(1)
	r.Must(pool, "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
	ctx, st := rig.Staged(t)
	if _, err := pool.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)"); !errors.Is(err, bedsql.ErrStaged) || !strings.Contains(err.Error(), ":memory:") {
		t.Errorf("Exec: %v, want ErrStaged: a connection for the delivery would reach another database", err)
	}
	if err := st.End(context.Background()); err != nil {
		t.Error(err)
	}
	r.WantNoLog()
}
