package driver

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/stdlib"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

var writeForms = map[string][]rig.Form{
	"": {
		{Text: "UPDATE account SET balance = balance + 1"},
		{Text: "update account set balance = balance + 1"},
		{Text: "\n\t UPDATE account SET balance = balance + 1 ; "},
		{Text: "/* who */ UPDATE account SET balance = balance + 1"},
		{Text: "-- who\nUPDATE account SET balance = balance + 1"},
		{Text: "/* a */ -- b\n /* ; */ DELETE FROM account WHERE id = 99 /* c */"},
		{Text: "INSERT INTO account SELECT id + 100, 0 FROM account WHERE id = 1"},
		{Text: "INSERT INTO account (id, balance) VALUES (7, 7) RETURNING id", Rows: true},
		{Text: "DELETE FROM account WHERE id = 7 RETURNING id", Rows: true},
	},
	testdb.DriverMySQL: {
		{Text: "# who\nUPDATE account SET balance = balance + 1"},
		{Text: "REPLACE INTO account VALUES (8, 8)"},
		{Text: "INSERT INTO account VALUES (1, 0) ON DUPLICATE KEY UPDATE balance = balance + 1"},
		{Text: "INSERT INTO account WITH c AS (SELECT 9 AS id) SELECT id, 9 FROM c"},
		{Text: "INSERT IGNORE INTO account VALUES (1, 0)"},
		{Text: "UPDATE account a JOIN account b ON a.id = b.id SET a.balance = a.balance + 1"},
		{Text: "DELETE a FROM account a WHERE a.id = 99"},
		{Text: "ANALYZE UPDATE account SET balance = balance + 1", Rows: true},
		{Text: "SET STATEMENT max_statement_time = 10 FOR UPDATE account SET balance = balance + 1"},
		{Text: "/*!50000 UPDATE account SET balance = balance + 1 */"},
		// ent's upsert, bun's bulk update
		{Text: "INSERT INTO `account` (`id`, `balance`) VALUES (1, 0) ON DUPLICATE KEY UPDATE `balance` = COALESCE(`account`.`balance`, 0) + 1, `id` = LAST_INSERT_ID(`account`.`id`)"},
		{Text: "UPDATE `account` AS `a`, (SELECT 1 AS `id`, 1 AS `n`) AS `_data` SET `a`.`balance` = `a`.`balance` + `_data`.`n` WHERE (`a`.`id` = `_data`.`id`)"},
	},
	testdb.DriverPostgres: {
		{Text: "/* outer /* inner */ */ UPDATE account SET balance = balance + 1"},
		{Text: "WITH c AS (SELECT 1 AS id) UPDATE account SET balance = balance + 1 FROM c WHERE account.id = c.id"},
		{Text: "WITH moved AS (DELETE FROM account WHERE id = 99 RETURNING *) SELECT * FROM moved", Rows: true},
		{Text: "WITH c AS (UPDATE account SET balance = balance + 1 RETURNING id) SELECT count(*) FROM c", Rows: true},
		{Text: "MERGE INTO account a USING (SELECT 1 AS id) s ON a.id = s.id WHEN MATCHED THEN UPDATE SET balance = balance + 1"},
		{Text: "INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1"},
		{Text: "UPDATE ONLY account SET balance = balance + 1"},
		{Text: "EXPLAIN ANALYZE UPDATE account SET balance = balance + 1", Rows: true},
		{Text: "EXPLAIN (ANALYZE, COSTS OFF) DELETE FROM account WHERE id = 99", Rows: true},
		// ent's upsert, bun's bulk update, sqlc's bulk insert
		{Text: `INSERT INTO "account" ("id", "balance") VALUES (1, 0) ON CONFLICT ("id") DO UPDATE SET "balance" = COALESCE("account"."balance", 0) + 1 RETURNING "id"`, Rows: true},
		{Text: `WITH "_data" ("id", "n") AS (VALUES (1::int, 1::int)) UPDATE "account" AS "a" SET "balance" = "a"."balance" + _data."n" FROM _data WHERE ("a"."id" = _data."id")`},
		{Text: "-- name: CreateAccounts :many\nINSERT INTO account (id, balance) SELECT unnest(ARRAY[20, 21]), unnest(ARRAY[1, 2]) RETURNING id", Rows: true},
	},
	testdb.DriverSQLite: {
		{Text: "REPLACE INTO account VALUES (8, 8)"},
		{Text: "INSERT OR IGNORE INTO account VALUES (1, 0)"},
		{Text: "WITH c AS (SELECT 1 AS id) UPDATE account SET balance = balance + 1 WHERE id IN (SELECT id FROM c)"},
		{Text: "WITH c (id) AS (SELECT 1) DELETE FROM account WHERE id = 99"},
		{Text: "INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = balance + 1"},
	},
}

var otherForms = map[string][]rig.Form{
	"": {
		{Text: "SELECT id FROM account", Rows: true},
		{Text: "SELECT 'UPDATE account SET balance = 1'", Rows: true},
		{Text: "/* UPDATE account SET balance = 1 */ SELECT 1", Rows: true},
		{Text: "WITH c AS (SELECT 1 AS id) SELECT id FROM c", Rows: true},
		{Text: "CREATE TABLE updates (id INT)"},
		{Text: "CREATE INDEX by_balance ON account (balance)"},
		{Text: "CREATE VIEW insert_view AS SELECT id FROM account"},
		{Text: "DROP VIEW insert_view"},
		{Text: "DROP TABLE updates"},
	},
	testdb.DriverMySQL: {
		{Text: "SELECT id FROM account WHERE id = 1 FOR UPDATE", Rows: true},
		{Text: "(SELECT 1) UNION (SELECT 2)", Rows: true},
		{Text: "CREATE TABLE copy AS SELECT * FROM account"},
		{Text: "TRUNCATE TABLE copy"},
		{Text: "EXPLAIN UPDATE account SET balance = 1", Rows: true},
		{Text: "SHOW TABLES", Rows: true},
		{Text: "CREATE PROCEDURE p() UPDATE account SET balance = balance"},
		{Text: "CALL p()"},
		{Text: "DO SLEEP(0)"},
	},
	testdb.DriverPostgres: {
		{Text: "SELECT id FROM account WHERE id = 1 FOR UPDATE", Rows: true},
		{Text: "(SELECT 1) UNION (SELECT 2)", Rows: true},
		{Text: "SELECT * INTO copy FROM account"},
		{Text: "TRUNCATE copy"},
		{Text: "EXPLAIN UPDATE account SET balance = 1", Rows: true},
		{Text: "SHOW server_version", Rows: true},
		{Text: "DO $$ BEGIN UPDATE account SET balance = balance; END $$"},
		{Text: "VALUES (1)", Rows: true},
	},
	testdb.DriverSQLite: {
		{Text: "CREATE TABLE copy AS SELECT * FROM account"},
		{Text: "EXPLAIN UPDATE account SET balance = 1", Rows: true},
		{Text: "PRAGMA table_info(account)", Rows: true},
		{Text: "VALUES (1)", Rows: true},
		{Text: "ANALYZE"},
	},
}

func TestEveryWriteFormIsLoggedAndRunsOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var logged []string
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func(units []*entry.Unit) error {
				logged = append(logged, units[0].Statements[0].SQL)
				return nil
			}}
		})
		r.Account(0)
		twin := rig.New(t, rig.FreshLike(t, db)) // what the bare driver makes of it
		twin.Account(0)
		for _, f := range append(writeForms[""], writeForms[db.Driver]...) {
			if !testdb.Knows(t, r.Bare, f.Text) {
				continue
			}
			logged = nil
			if err := r.Send(f); err != nil {
				t.Errorf("%q: %v", f.Text, err)
				continue
			}
			if len(logged) != 1 || logged[0] != f.Text {
				t.Errorf("%q: the log was given %q, want the text itself once", f.Text, logged)
			}
			bare := rig.Rig{T: t, Wrapped: twin.Bare}
			if err := bare.Send(f); err != nil {
				t.Fatalf("%q on the bare driver: %v", f.Text, err)
			}
			if got, want := r.Balance(1), twin.Balance(1); got != want {
				t.Fatalf("%q: the balance is %d, with the bare driver %d", f.Text, got, want)
			}
		}
		r.WantNoLog()
		if n := r.Counters.PassedThrough.Load(); n != 0 {
			t.Errorf("%d writes passed through unlogged", n)
		}
	})
}

func TestWhatIsNoWriteIsNeverLogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		var hook *logtest.Hook
		r := rig.New(t, db, rig.Collecting(&hook), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		for _, f := range append(otherForms[""], otherForms[db.Driver]...) {
			if err := r.Send(f); err != nil {
				t.Errorf("%q: %v", f.Text, err)
			}
			if adds != 0 {
				t.Fatalf("%q was logged", f.Text)
			}
		}
		r.WantBalances(100)
		if w := rig.Warnings(hook); len(w) != 0 {
			t.Errorf("warnings: %q", w)
		}
	})
}

func TestErrorsOfNonWritesAreTheDrivers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		for _, f := range []rig.Form{{Text: "CREATE TABLE account (id INT)"}, {Text: "DROP TABLE nope"}, {Text: "SELECT nope FROM account", Rows: true}, {Text: "nonsense"}} {
			bare := rig.Rig{T: t, Wrapped: r.Bare}
			want := bare.Send(f)
			if err := r.Send(f); err == nil || !reflect.DeepEqual(err, want) {
				t.Errorf("%q: %#v is not what the bare driver says: %#v", f.Text, err, want)
			}
		}
		r.WantNoLog()
	})
}

func TestSeveralStatementsPassThroughWithAWarning(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL {
			db = rig.WithParam(db, "multiStatements", "true")
		}
		adds := 0
		var hook *logtest.Hook
		r := rig.New(t, db, rig.Collecting(&hook), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		r.Must(r.Wrapped, "UPDATE account SET balance = 1; UPDATE account SET balance = balance + 1")
		r.WantBalances(2)
		if adds != 0 {
			t.Errorf("%d entries were written: one error could not say which of them ran", adds)
		}
		if n := r.Counters.PassedThrough.Load(); n != 1 {
			t.Errorf("%d counted as passed through, want 1", n)
		}
		if w := rig.Warnings(hook); len(w) != 1 {
			t.Errorf("warnings: %q, want one", w)
		}
		if err := r.Fails(r.Wrapped, "UPDATE account SET balance = 5; UPDATE account SET nope = 1"); !rig.IsDriversOwn(db, err) {
			t.Errorf("%T %v is not the driver's own bare error", err, err)
		}
		// A semicolon alone does not make several.
		r.Must(r.Wrapped, "UPDATE account SET balance = 3;")
		if adds != 1 {
			t.Errorf("%d entries for one statement with a semicolon at its end, want 1", adds)
		}
		// Several reads are no writes.
		before := r.Counters.PassedThrough.Load()
		if err := r.Send(rig.Form{Text: "SELECT 1; SELECT 2", Rows: true}); err == nil && r.Counters.PassedThrough.Load() != before {
			t.Error("several reads count as writes that passed through")
		}
	})
}

func TestLoadDataLocalPassesThrough(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	adds := 0
	r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
	r.Account()
	file := filepath.Join(t.TempDir(), "accounts.csv")
	if err := os.WriteFile(file, []byte("1\t100\n2\t200\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mysql.RegisterLocalFile(file)
	t.Cleanup(func() { mysql.DeregisterLocalFile(file) })
	res, err := r.Wrapped.Exec("LOAD DATA LOCAL INFILE '" + file + "' INTO TABLE account")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n != 2 || err != nil {
		t.Errorf("RowsAffected = %d, %v; want 2", n, err)
	}
	if adds != 0 {
		t.Errorf("%d entries were written", adds)
	}
	r.WantBalances(100, 200)
}

func TestCopyPassesThrough(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	adds := 0
	r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
	r.Account()
	file := filepath.Join(t.TempDir(), "accounts.csv")
	_, want := r.Bare.Exec("COPY account FROM '" + file + "'")
	err := r.Fails(r.Wrapped, "COPY account FROM '"+file+"'")
	if want == nil || err.Error() != want.Error() || !rig.IsDriversOwn(db, err) {
		t.Errorf("%v, want the driver's own %v", err, want)
	}
	conn := r.Conn()
	ctx := context.Background()
	err = conn.Raw(func(dc any) error {
		inner, err := dc.(*bedsql.Conn).Raw(ctx)
		if err != nil {
			return err
		}
		_, err = inner.(*stdlib.Conn).Conn().CopyFrom(ctx, []string{"account"}, []string{"id", "balance"}, &oneRow{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if adds != 0 {
		t.Errorf("%d entries were written", adds)
	}
	r.WantBalances(100)
}

// oneRow is a pgx.CopyFromSource.
type oneRow struct{ done bool }

func (o *oneRow) Next() bool {
	first := !o.done
	o.done = true
	return first
}

func (*oneRow) Values() ([]any, error) { return []any{int32(1), int32(100)}, nil }

func (*oneRow) Err() error { return nil }

func TestSelectForUpdateHoldsItsLock(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		tx := r.Begin()
		if err := tx.QueryRow("SELECT id FROM account WHERE id = 1 FOR UPDATE").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		err := r.Bare.QueryRow("SELECT id FROM account WHERE id = 1 FOR UPDATE NOWAIT").Scan(new(int))
		if err == nil || err == sql.ErrNoRows {
			t.Errorf("another session could lock the row: %v", err)
		}
	})
}
