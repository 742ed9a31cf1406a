package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// form is a way to write a statement.
type form struct {
	text string
	// rows: it is sent through Query.
	rows bool
}

var writeForms = map[string][]form{
	"": {
		{text: "UPDATE account SET balance = balance + 1"},
		{text: "update account set balance = balance + 1"},
		{text: "\n\t UPDATE account SET balance = balance + 1 ; "},
		{text: "/* who */ UPDATE account SET balance = balance + 1"},
		{text: "-- who\nUPDATE account SET balance = balance + 1"},
		{text: "/* a */ -- b\n /* ; */ DELETE FROM account WHERE id = 99 /* c */"},
		{text: "INSERT INTO account SELECT id + 100, 0 FROM account WHERE id = 1"},
		{text: "INSERT INTO account (id, balance) VALUES (7, 7) RETURNING id", rows: true},
		{text: "DELETE FROM account WHERE id = 7 RETURNING id", rows: true},
	},
	testdb.DriverMySQL: {
		{text: "# who\nUPDATE account SET balance = balance + 1"},
		{text: "REPLACE INTO account VALUES (8, 8)"},
		{text: "INSERT INTO account VALUES (1, 0) ON DUPLICATE KEY UPDATE balance = balance + 1"},
		{text: "INSERT INTO account WITH c AS (SELECT 9 AS id) SELECT id, 9 FROM c"},
		{text: "INSERT IGNORE INTO account VALUES (1, 0)"},
		{text: "UPDATE account a JOIN account b ON a.id = b.id SET a.balance = a.balance + 1"},
		{text: "DELETE a FROM account a WHERE a.id = 99"},
		{text: "ANALYZE UPDATE account SET balance = balance + 1", rows: true},
		{text: "SET STATEMENT max_statement_time = 10 FOR UPDATE account SET balance = balance + 1"},
		{text: "/*!50000 UPDATE account SET balance = balance + 1 */"},
		// ent's upsert, bun's bulk update
		{text: "INSERT INTO `account` (`id`, `balance`) VALUES (1, 0) ON DUPLICATE KEY UPDATE `balance` = COALESCE(`account`.`balance`, 0) + 1, `id` = LAST_INSERT_ID(`account`.`id`)"},
		{text: "UPDATE `account` AS `a`, (SELECT 1 AS `id`, 1 AS `n`) AS `_data` SET `a`.`balance` = `a`.`balance` + `_data`.`n` WHERE (`a`.`id` = `_data`.`id`)"},
	},
	testdb.DriverPostgres: {
		{text: "/* outer /* inner */ */ UPDATE account SET balance = balance + 1"},
		{text: "WITH c AS (SELECT 1 AS id) UPDATE account SET balance = balance + 1 FROM c WHERE account.id = c.id"},
		{text: "WITH moved AS (DELETE FROM account WHERE id = 99 RETURNING *) SELECT * FROM moved", rows: true},
		{text: "WITH c AS (UPDATE account SET balance = balance + 1 RETURNING id) SELECT count(*) FROM c", rows: true},
		{text: "MERGE INTO account a USING (SELECT 1 AS id) s ON a.id = s.id WHEN MATCHED THEN UPDATE SET balance = balance + 1"},
		{text: "INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1"},
		{text: "UPDATE ONLY account SET balance = balance + 1"},
		{text: "EXPLAIN ANALYZE UPDATE account SET balance = balance + 1", rows: true},
		{text: "EXPLAIN (ANALYZE, COSTS OFF) DELETE FROM account WHERE id = 99", rows: true},
		// ent's upsert, bun's bulk update, sqlc's bulk insert
		{text: `INSERT INTO "account" ("id", "balance") VALUES (1, 0) ON CONFLICT ("id") DO UPDATE SET "balance" = COALESCE("account"."balance", 0) + 1 RETURNING "id"`, rows: true},
		{text: `WITH "_data" ("id", "n") AS (VALUES (1::int, 1::int)) UPDATE "account" AS "a" SET "balance" = "a"."balance" + _data."n" FROM _data WHERE ("a"."id" = _data."id")`},
		{text: "-- name: CreateAccounts :many\nINSERT INTO account (id, balance) SELECT unnest(ARRAY[20, 21]), unnest(ARRAY[1, 2]) RETURNING id", rows: true},
	},
	testdb.DriverSQLite: {
		{text: "REPLACE INTO account VALUES (8, 8)"},
		{text: "INSERT OR IGNORE INTO account VALUES (1, 0)"},
		{text: "WITH c AS (SELECT 1 AS id) UPDATE account SET balance = balance + 1 WHERE id IN (SELECT id FROM c)"},
		{text: "WITH c (id) AS (SELECT 1) DELETE FROM account WHERE id = 99"},
		{text: "INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = balance + 1"},
	},
}

var otherForms = map[string][]form{
	"": {
		{text: "SELECT id FROM account", rows: true},
		{text: "SELECT 'UPDATE account SET balance = 1'", rows: true},
		{text: "/* UPDATE account SET balance = 1 */ SELECT 1", rows: true},
		{text: "WITH c AS (SELECT 1 AS id) SELECT id FROM c", rows: true},
		{text: "CREATE TABLE updates (id INT)"},
		{text: "CREATE INDEX by_balance ON account (balance)"},
		{text: "CREATE VIEW insert_view AS SELECT id FROM account"},
		{text: "DROP VIEW insert_view"},
		{text: "DROP TABLE updates"},
	},
	testdb.DriverMySQL: {
		{text: "SELECT id FROM account WHERE id = 1 FOR UPDATE", rows: true},
		{text: "(SELECT 1) UNION (SELECT 2)", rows: true},
		{text: "CREATE TABLE copy AS SELECT * FROM account"},
		{text: "TRUNCATE TABLE copy"},
		{text: "EXPLAIN UPDATE account SET balance = 1", rows: true},
		{text: "SHOW TABLES", rows: true},
		{text: "CREATE PROCEDURE p() UPDATE account SET balance = balance"},
		{text: "CALL p()"},
		{text: "DO SLEEP(0)"},
	},
	testdb.DriverPostgres: {
		{text: "SELECT id FROM account WHERE id = 1 FOR UPDATE", rows: true},
		{text: "(SELECT 1) UNION (SELECT 2)", rows: true},
		{text: "SELECT * INTO copy FROM account"},
		{text: "TRUNCATE copy"},
		{text: "EXPLAIN UPDATE account SET balance = 1", rows: true},
		{text: "SHOW server_version", rows: true},
		{text: "DO $$ BEGIN UPDATE account SET balance = balance; END $$"},
		{text: "VALUES (1)", rows: true},
	},
	testdb.DriverSQLite: {
		{text: "CREATE TABLE copy AS SELECT * FROM account"},
		{text: "EXPLAIN UPDATE account SET balance = 1", rows: true},
		{text: "PRAGMA table_info(account)", rows: true},
		{text: "VALUES (1)", rows: true},
		{text: "ANALYZE"},
	},
}

func (r *rig) send(f form) error {
	if !f.rows {
		_, err := r.wrapped.Exec(f.text)
		return err
	}
	rows, err := r.wrapped.Query(f.text)
	if err != nil {
		return err
	}
	for rows.Next() {
		// A driver may find an error in a later row only.
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

func TestEveryWriteFormIsLoggedAndRunsOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var logged []string
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func(units []*txlog.Unit) error {
				logged = append(logged, units[0].Statements[0].SQL)
				return nil
			}}
		})
		r.account(0)
		twin := newRig(t, freshLike(t, db)) // what the bare driver makes of it
		twin.account(0)
		for _, f := range append(writeForms[""], writeForms[db.Driver]...) {
			logged = nil
			if err := r.send(f); err != nil {
				t.Errorf("%q: %v", f.text, err)
				continue
			}
			if len(logged) != 1 || logged[0] != f.text {
				t.Errorf("%q: the log was given %q, want the text itself once", f.text, logged)
			}
			bare := rig{t: t, wrapped: twin.bare}
			if err := bare.send(f); err != nil {
				t.Fatalf("%q on the bare driver: %v", f.text, err)
			}
			if got, want := r.balance(1), twin.balance(1); got != want {
				t.Fatalf("%q: the balance is %d, with the bare driver %d", f.text, got, want)
			}
		}
		r.wantNoLog()
		if n := r.counters.PassedThrough.Load(); n != 0 {
			t.Errorf("%d writes passed through unlogged", n)
		}
	})
}

func TestWhatIsNoWriteIsNeverLogged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		var hook *logtest.Hook
		r := newRig(t, db, collecting(&hook), func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		for _, f := range append(otherForms[""], otherForms[db.Driver]...) {
			if err := r.send(f); err != nil {
				t.Errorf("%q: %v", f.text, err)
			}
			if adds != 0 {
				t.Fatalf("%q was logged", f.text)
			}
		}
		r.wantBalances(100)
		if w := warnings(hook); len(w) != 0 {
			t.Errorf("warnings: %q", w)
		}
	})
}

func TestErrorsOfNonWritesAreTheDrivers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		for _, f := range []form{{text: "CREATE TABLE account (id INT)"}, {text: "DROP TABLE nope"}, {text: "SELECT nope FROM account", rows: true}, {text: "nonsense"}} {
			bare := rig{t: t, wrapped: r.bare}
			want := bare.send(f)
			if err := r.send(f); err == nil || !reflect.DeepEqual(err, want) {
				t.Errorf("%q: %#v is not what the bare driver says: %#v", f.text, err, want)
			}
		}
		r.wantNoLog()
	})
}

func TestSeveralStatementsPassThroughWithAWarning(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if db.Driver == testdb.DriverMySQL {
			db = withParam(db, "multiStatements", "true")
		}
		adds := 0
		var hook *logtest.Hook
		r := newRig(t, db, collecting(&hook), func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		r.must(r.wrapped, "UPDATE account SET balance = 1; UPDATE account SET balance = balance + 1")
		r.wantBalances(2)
		if adds != 0 {
			t.Errorf("%d entries were written: one error could not say which of them ran", adds)
		}
		if n := r.counters.PassedThrough.Load(); n != 1 {
			t.Errorf("%d counted as passed through, want 1", n)
		}
		if w := warnings(hook); len(w) != 1 {
			t.Errorf("warnings: %q, want one", w)
		}
		if err := r.fails(r.wrapped, "UPDATE account SET balance = 5; UPDATE account SET nope = 1"); !isDriversOwn(db, err) {
			t.Errorf("%T %v is not the driver's own bare error", err, err)
		}
		// A semicolon alone does not make several.
		r.must(r.wrapped, "UPDATE account SET balance = 3;")
		if adds != 1 {
			t.Errorf("%d entries for one statement with a semicolon at its end, want 1", adds)
		}
		// Several reads are no writes.
		before := r.counters.PassedThrough.Load()
		if err := r.send(form{text: "SELECT 1; SELECT 2", rows: true}); err == nil && r.counters.PassedThrough.Load() != before {
			t.Error("several reads count as writes that passed through")
		}
	})
}

func TestLoadDataLocalPassesThrough(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	adds := 0
	r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
	r.account()
	file := filepath.Join(t.TempDir(), "accounts.csv")
	if err := os.WriteFile(file, []byte("1\t100\n2\t200\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mysql.RegisterLocalFile(file)
	t.Cleanup(func() { mysql.DeregisterLocalFile(file) })
	res, err := r.wrapped.Exec("LOAD DATA LOCAL INFILE '" + file + "' INTO TABLE account")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n != 2 || err != nil {
		t.Errorf("RowsAffected = %d, %v; want 2", n, err)
	}
	if adds != 0 {
		t.Errorf("%d entries were written", adds)
	}
	r.wantBalances(100, 200)
}

func TestCopyPassesThrough(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	adds := 0
	r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
	r.account()
	file := filepath.Join(t.TempDir(), "accounts.csv")
	_, want := r.bare.Exec("COPY account FROM '" + file + "'")
	err := r.fails(r.wrapped, "COPY account FROM '"+file+"'")
	if want == nil || err.Error() != want.Error() || !isDriversOwn(db, err) {
		t.Errorf("%v, want the driver's own %v", err, want)
	}
	conn := r.conn()
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
	r.wantBalances(100)
}

// oneRow is a pgx.CopyFromSource.
type oneRow struct{ done bool }

func (o *oneRow) Next() bool {
	first := !o.done
	o.done = true
	return first
}
func (*oneRow) Values() ([]any, error) { return []any{int32(1), int32(100)}, nil }
func (*oneRow) Err() error             { return nil }

func TestSelectForUpdateHoldsItsLock(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		tx := r.begin()
		if err := tx.QueryRow("SELECT id FROM account WHERE id = 1 FOR UPDATE").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		err := r.bare.QueryRow("SELECT id FROM account WHERE id = 1 FOR UPDATE NOWAIT").Scan(new(int))
		if err == nil || err == sql.ErrNoRows {
			t.Errorf("another session could lock the row: %v", err)
		}
	})
}
