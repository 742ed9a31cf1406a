package exactlyonce

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// withoutPrimaryKey counts the tables in the database that have none.
var withoutPrimaryKey = testdb.By[string]{
	MySQL: `SELECT COUNT(*) FROM information_schema.tables t WHERE t.table_schema = DATABASE() AND NOT EXISTS (
  SELECT 1 FROM information_schema.table_constraints c
  WHERE c.table_schema = t.table_schema AND c.table_name = t.table_name AND c.constraint_type = 'PRIMARY KEY')`,
	Postgres: `SELECT COUNT(*) FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
  AND NOT EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)`,
	SQLite: `SELECT COUNT(*) FROM sqlite_master m WHERE m.type = 'table'
  AND NOT EXISTS (SELECT 1 FROM pragma_table_info(m.name) WHERE pk > 0)`,
}

// Galera's wsrep_mode=REQUIRED_PRIMARY_KEY and MySQL's sql_require_primary_key
// refuse a table without one.
func TestEveryTableHasAPrimaryKey(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		r.Must(r.Wrapped, rig.AddOne) // makes the table of receipts
		r.WantBalances(1)
		if n := r.Count(withoutPrimaryKey.For(db.Driver)); n != 0 {
			t.Errorf("%d tables of the target have no primary key", n)
		}
		var n int
		if err := r.LogPool().QueryRow(withoutPrimaryKey.For(db.Driver)).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d tables of the log have no primary key (%v)", n, err)
		}
	}
	testdb.Each(t, test)
	t.Run("on a server that requires one", func(t *testing.T) {
		t.Parallel()
		server := testdb.PrivateMariaDB(t, "--innodb-force-primary-key=ON")
		db, log := server.DB(t), server.DB(t)
		r := rig.NewWithLog(t, db, log, rig.ExactlyOnce)
		r.Account(0)
		r.Must(r.Wrapped, rig.AddOne)
		r.WantBalances(1)
	})
}

// older is the key that the table of receipts had before it had a primary key.
var older = testdb.By[[]string]{
	MySQL:    []string{"ALTER TABLE bed_receipt DROP PRIMARY KEY, ADD UNIQUE KEY bed_receipt_id (id)"},
	Postgres: []string{"ALTER TABLE bed_receipt DROP CONSTRAINT bed_receipt_id, ADD CONSTRAINT bed_receipt_id UNIQUE (id)"},
	SQLite: []string{"DROP TABLE bed_receipt", `CREATE TABLE bed_receipt (id VARCHAR(80) NOT NULL, unit_id VARCHAR(40) NOT NULL,
  log_id VARCHAR(40) NOT NULL, void SMALLINT NOT NULL, creation_time BIGINT NOT NULL, keep_until BIGINT NOT NULL, fingerprint VARCHAR(64) NULL,
  result TEXT NULL, log_gone SMALLINT NOT NULL DEFAULT 0, CONSTRAINT bed_receipt_id UNIQUE (id))`},
}

func TestReceiptIsMetWhicheverKeyItsTableHas(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, change := range map[string][]string{"a primary key": nil, "that of an older version": older.For(db.Driver)} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db), rig.ExactlyOnce)
				r.ReceiptTable()
				r.Exec(change...)
				r.Account(0)
				for i := range 2 {
					if _, replayed := r.MustSendUnder("the same", rig.AddOne); replayed != (i == 1) {
						t.Errorf("request %d: replayed %t", i, replayed)
					}
				}
				r.WantBalances(1)
				r.WantNoLog()
				r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
				receipted(r)
				inFlight(r, r.WantOneLog())(true)
				if report := r.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.WantBalances(2)
				if err := r.Fails(r.Wrapped, "INSERT INTO account VALUES (1, 5)"); errors.Is(err, bedsql.ErrPending) {
					t.Errorf("a duplicate of the application's own: %v", err)
				}
				r.WantBalances(2)
			})
		}
	})
}

// keyless are tables of receipts that lost their key.
var keyless = testdb.By[[]string]{
	MySQL:    []string{"ALTER TABLE bed_receipt DROP PRIMARY KEY"},
	Postgres: []string{"ALTER TABLE bed_receipt DROP CONSTRAINT bed_receipt_id"},
	SQLite:   []string{"ALTER TABLE bed_receipt RENAME TO r", "CREATE TABLE bed_receipt AS SELECT * FROM r"},
}

func TestReceiptTableWithoutKeyRefusesWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.ExactlyOnce)
		r.Account(0)
		r.ReceiptTable()
		r.Exec(keyless.For(db.Driver)...)
		ctx := context.Background()
		var table *dialect.ReceiptTableError
		for name, write := range map[string]func() error{
			"a write": func() error {
				_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
				return err
			},
			"a write under a key": func() error {
				_, _, err := r.SendUnder("k", rig.AddOne)
				return err
			},
			"a local transaction": func() error {
				tx, err := r.Wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(ctx, rig.AddOne)
				return err
			},
		} {
			if err := write(); !errors.As(err, &table) || !strings.Contains(err.Error(), table.Statement) {
				t.Fatalf("%s: %v, want a ReceiptTableError with the statement to run", name, err)
			}
		}
		r.WantNoLog()
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		if report := r.RunOnce(); report.Delivered != 0 || r.WantOneLog().Tries != 0 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(0)
		r.Exec(table.Statement)
		for range 4 {
			r.MustSendUnder("k", rig.AddOne)
		}
		r.WantBalances(1)
	})
}
