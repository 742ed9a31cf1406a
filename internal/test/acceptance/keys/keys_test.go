package keys

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// items makes a table whose ids the database makes.
func items(r *rig.Rig) {
	r.T.Helper()
	kind := testdb.By[string]{
		MySQL:    "id INT AUTO_INCREMENT PRIMARY KEY, content BLOB, at DATETIME(6), price DOUBLE",
		Postgres: "id SERIAL PRIMARY KEY, content BYTEA, at TIMESTAMPTZ, price DOUBLE PRECISION",
		SQLite:   "id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB, at DATETIME, price REAL",
	}.For(r.DB.Driver)
	r.Exec("CREATE TABLE item (" + kind + ", name VARCHAR(20) NOT NULL)")
}

func TestKeyRepeatedDMLIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := rig.New(t, rig.FreshLike(t, db), guarantee)
			r.Account(1, 1, 1)
			items(r)
			for i := range 3 {
				ctx, k := rig.Keyed("order 7")
				inserted := r.Stage(ctx, r.Wrapped, "INSERT INTO item (name) VALUES (?)", "a")
				rig.WantReplayed(t, k.Replayed(), i > 0)
				updated := r.Stage(bedsql.WithKeyPart(ctx, "first"), r.Wrapped, rig.Increment+" OR id = ?", 1, 1, 3)
				none := r.Stage(bedsql.WithKeyPart(ctx, "none"), r.Wrapped, rig.Increment, 1, 99)
				rig.WantRows(t, inserted, 1)
				rig.WantRows(t, updated, 2)
				rig.WantRows(t, none, 0)
				id, err := inserted.LastInsertId()
				if db.Driver == testdb.DriverPostgres && err == nil || db.Driver != testdb.DriverPostgres && (id != 1 || err != nil) {
					t.Errorf("LastInsertId: %d, %v", id, err)
				}
				r.WantBalances(2, 1, 2)
				if n := r.Count("SELECT COUNT(*) FROM item"); n != 1 {
					t.Errorf("there are %d items, want 1", n)
				}
				r.WantReceipts(3)
			}
			r.WantNoLog()
		})
	})
}

func TestKeyRETURNINGSentAgainGivesTheSameRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		items(r)
		if !r.Returns(t) {
			return
		}
		at := time.Date(2024, 2, 29, 12, 30, 0, 123456000, time.UTC)
		type answer struct {
			columns, types []string
			rows           [][]any
		}
		send := func() (a answer, replayed bool) {
			t.Helper()
			ctx, k := rig.Keyed("returning")
			rows, err := r.Wrapped.QueryContext(ctx, r.Q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
				"a", []byte("\x00\xff"), at, 0.1, "b")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			types, err := rows.ColumnTypes()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range types {
				a.columns = append(a.columns, c.Name())
				a.types = append(a.types, c.DatabaseTypeName())
			}
			a.rows = rig.Content(t, rows)
			return a, k.Replayed()
		}
		first, replayed := send()
		rig.WantReplayed(t, replayed, false)
		if len(first.rows) != 2 || len(first.columns) != 5 {
			t.Fatalf("the first gives %+v", first)
		}
		for range 2 {
			again, replayed := send()
			rig.WantReplayed(t, replayed, true)
			if !reflect.DeepEqual(again, first) {
				t.Errorf("sent again it gives\n%+v, want\n%+v", again, first)
			}
		}
		if n := r.Count("SELECT COUNT(*) FROM item"); n != 2 {
			t.Errorf("there are %d items, want 2", n)
		}
		// The same key with unread rows is the same request.
		ctx, k := rig.Keyed("returning")
		if _, err := r.Wrapped.ExecContext(ctx, r.Q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
			"a", []byte("\x00\xff"), at, 0.1, "b"); err != nil || !k.Replayed() {
			t.Errorf("through Exec: %v, replayed %v", err, k.Replayed())
		}
		r.WantNoLog()
	})
}

func TestKeyRepeatedTransactionIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		items(r)
		returns := r.Returns(t)
		for i := range 3 {
			ctx, tx, k := r.BeginUnder("transfer")
			first := r.Stage(ctx, tx, rig.Increment, -10, 1)
			second := r.Stage(ctx, tx, rig.Increment+" OR id = ?", 10, 2, 3)
			var balance int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil || balance != 90 {
				t.Errorf("the query gives %d, %v; want what is there now", balance, err)
			}
			r.Must(tx, "SAVEPOINT a")
			inserted := r.Stage(ctx, tx, "INSERT INTO item (name) VALUES (?)", "rolled back")
			r.Must(tx, "ROLLBACK TO SAVEPOINT a")
			var id int
			if !returns {
				r.Must(tx, "INSERT INTO item (id, name) VALUES (?, ?)", 7, "kept")
			} else if err := tx.QueryRowContext(ctx, r.Q("INSERT INTO item (id, name) VALUES (?, ?) RETURNING id"), 7, "kept").Scan(&id); err != nil || id != 7 {
				t.Errorf("RETURNING gives %d, %v; want 7", id, err)
			}
			rig.WantReplayed(t, k.Replayed(), false)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			rig.WantReplayed(t, k.Replayed(), i > 0)
			for _, res := range []sql.Result{first, second, inserted} {
				rig.WantRows(t, res, 1)
			}
			if n := r.Count("SELECT COUNT(*) FROM item"); n != 1 {
				t.Errorf("there are %d items, want 1", n)
			}
			r.WantBalances(90, 110)
			r.WantReceipts(1)
		}
		r.WantNoLog()
	})
}

func TestKeyAnswerIncludesAFailedStatement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		for i := range 3 {
			ctx, tx, k := r.BeginUnder("upsert")
			r.Must(tx, "SAVEPOINT a")
			_, err := tx.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)")
			if err == nil || i == 0 && !rig.IsDriversOwn(db, err) || i > 0 && !strings.Contains(err.Error(), "failed") {
				t.Errorf("the duplicate: %v", err)
			}
			r.Must(tx, "ROLLBACK TO SAVEPOINT a")
			rig.WantRows(t, r.Stage(ctx, tx, rig.Increment, 1, 1), 1)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			rig.WantReplayed(t, k.Replayed(), i > 0)
			r.WantBalances(101)
		}
	})
}

func TestKeyARollbackLeavesNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, tx, _ := r.BeginUnder("k")
		r.Stage(ctx, tx, rig.Increment, 1, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(100)
		r.WantReceipts(0)
		// It can be another request then.
		_, replayed := r.MustSendUnder("k", rig.Increment, 5, 1)
		rig.WantReplayed(t, replayed, false)
		r.WantBalances(105)
		r.WantNoLog()
	})
}

func TestKeyRepeatedStagedGroupIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		logDB := testdb.NewLog(t, db.Driver)
		rigs := rig.News(t, logDB)
		send := func(by int) (results []sql.Result, replayed bool, err error) {
			t.Helper()
			ctx, k := rig.Keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rigs {
				results = append(results, r.Stage(ctx, r.Wrapped, rig.Increment, by, 1))
				tx, err := r.Wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				// Without the context too it belongs to the request.
				r.Must(tx, "UPDATE account SET balance = balance + ? WHERE id <= ?", by, 2)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			err = st.End(context.Background())
			return results, k.Replayed(), err
		}
		for i := range 3 {
			results, replayed, err := send(1)
			if err != nil {
				t.Fatal(err)
			}
			rig.WantReplayed(t, replayed, i > 0)
			for _, res := range results {
				rig.WantRows(t, res, 1)
			}
		}
		results, replayed, err := send(2)
		rig.WantReused(t, "End of another request", err)
		rig.WantReplayed(t, replayed, false)
		for i, r := range rigs {
			rig.WantResult(t, results[i], bedsql.ErrKeyReused)
			r.WantBalances(102, 101)
			r.WantReceipts(1)
		}
		rigs[0].WantNoLog() // also not parked: it can never be applied
	})
}
