package acceptance

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// keyed is the context of a request that is sent once more.
func keyed(key string) (context.Context, *bedsql.IdempotencyKey) {
	return bedsql.WithIdempotencyKey(context.Background(), key)
}

// sendUnder sends a DML as a request under a key.
func (r *rig) sendUnder(key, query string, args ...any) (res sql.Result, replayed bool, err error) {
	ctx, k := keyed(key)
	res, err = r.wrapped.ExecContext(ctx, r.q(query), args...)
	return res, k.Replayed(), err
}

func (r *rig) mustSendUnder(key, query string, args ...any) (res sql.Result, replayed bool) {
	r.t.Helper()
	res, replayed, err := r.sendUnder(key, query, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return res, replayed
}

// beginUnder begins a local transaction as a request under a key.
func (r *rig) beginUnder(key string) (context.Context, *sql.Tx, *bedsql.IdempotencyKey) {
	r.t.Helper()
	ctx, k := keyed(key)
	tx, err := r.wrapped.BeginTx(ctx, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback() })
	return ctx, tx, k
}

// items makes a table whose ids the database makes.
func (r *rig) items() {
	r.t.Helper()
	kind := testdb.By[string]{
		MySQL:    "id INT AUTO_INCREMENT PRIMARY KEY, content BLOB, at DATETIME(6), price DOUBLE",
		Postgres: "id SERIAL PRIMARY KEY, content BYTEA, at TIMESTAMPTZ, price DOUBLE PRECISION",
		SQLite:   "id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB, at DATETIME, price REAL",
	}.For(r.db.Driver)
	r.exec("CREATE TABLE item (" + kind + ", name VARCHAR(20) NOT NULL)")
}

func wantReplayed(t testing.TB, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("Replayed: %v, want %v", got, want)
	}
}

func TestKeyRepeatedDMLIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := newRig(t, freshLike(t, db), guarantee)
			r.account(1, 1, 1)
			r.items()
			for i := range 3 {
				ctx, k := keyed("order 7")
				inserted := r.stage(ctx, r.wrapped, "INSERT INTO item (name) VALUES (?)", "a")
				wantReplayed(t, k.Replayed(), i > 0)
				updated := r.stage(bedsql.WithKeyPart(ctx, "first"), r.wrapped, increment+" OR id = ?", 1, 1, 3)
				none := r.stage(bedsql.WithKeyPart(ctx, "none"), r.wrapped, increment, 1, 99)
				wantRows(t, inserted, 1)
				wantRows(t, updated, 2)
				wantRows(t, none, 0)
				id, err := inserted.LastInsertId()
				if db.Driver == testdb.DriverPostgres && err == nil || db.Driver != testdb.DriverPostgres && (id != 1 || err != nil) {
					t.Errorf("LastInsertId: %d, %v", id, err)
				}
				r.wantBalances(2, 1, 2)
				if n := r.count("SELECT COUNT(*) FROM item"); n != 1 {
					t.Errorf("there are %d items, want 1", n)
				}
				r.wantReceipts(3)
			}
			r.wantNoLog()
		})
	})
}

func TestKeyRETURNINGSentAgainGivesTheSameRows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.items()
		at := time.Date(2024, 2, 29, 12, 30, 0, 123456000, time.UTC)
		type answer struct {
			columns, types []string
			rows           [][]any
		}
		send := func() (a answer, replayed bool) {
			t.Helper()
			ctx, k := keyed("returning")
			rows, err := r.wrapped.QueryContext(ctx, r.q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
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
			a.rows = content(t, rows)
			return a, k.Replayed()
		}
		first, replayed := send()
		wantReplayed(t, replayed, false)
		if len(first.rows) != 2 || len(first.columns) != 5 {
			t.Fatalf("the first gives %+v", first)
		}
		for range 2 {
			again, replayed := send()
			wantReplayed(t, replayed, true)
			if !reflect.DeepEqual(again, first) {
				t.Errorf("sent again it gives\n%+v, want\n%+v", again, first)
			}
		}
		if n := r.count("SELECT COUNT(*) FROM item"); n != 2 {
			t.Errorf("there are %d items, want 2", n)
		}
		// The same key with unread rows is the same request.
		ctx, k := keyed("returning")
		if _, err := r.wrapped.ExecContext(ctx, r.q("INSERT INTO item (name, content, at, price) VALUES (?, ?, ?, ?), (?, NULL, NULL, NULL) RETURNING *"),
			"a", []byte("\x00\xff"), at, 0.1, "b"); err != nil || !k.Replayed() {
			t.Errorf("through Exec: %v, replayed %v", err, k.Replayed())
		}
		r.wantNoLog()
	})
}

func TestKeyRepeatedTransactionIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		r.items()
		for i := range 3 {
			ctx, tx, k := r.beginUnder("transfer")
			first := r.stage(ctx, tx, increment, -10, 1)
			second := r.stage(ctx, tx, increment+" OR id = ?", 10, 2, 3)
			var balance int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil || balance != 90 {
				t.Errorf("the query gives %d, %v; want what is there now", balance, err)
			}
			r.must(tx, "SAVEPOINT a")
			inserted := r.stage(ctx, tx, "INSERT INTO item (name) VALUES (?)", "rolled back")
			r.must(tx, "ROLLBACK TO SAVEPOINT a")
			var id int
			if err := tx.QueryRowContext(ctx, r.q("INSERT INTO item (id, name) VALUES (?, ?) RETURNING id"), 7, "kept").Scan(&id); err != nil || id != 7 {
				t.Errorf("RETURNING gives %d, %v; want 7", id, err)
			}
			wantReplayed(t, k.Replayed(), false)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, k.Replayed(), i > 0)
			for _, res := range []sql.Result{first, second, inserted} {
				wantRows(t, res, 1)
			}
			if n := r.count("SELECT COUNT(*) FROM item"); n != 1 {
				t.Errorf("there are %d items, want 1", n)
			}
			r.wantBalances(90, 110)
			r.wantReceipts(1)
		}
		r.wantNoLog()
	})
}

func TestKeyAnswerIncludesAFailedStatement(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		for i := range 3 {
			ctx, tx, k := r.beginUnder("upsert")
			r.must(tx, "SAVEPOINT a")
			_, err := tx.ExecContext(ctx, "INSERT INTO account VALUES (1, 1)")
			if err == nil || i == 0 && !isDriversOwn(db, err) || i > 0 && !strings.Contains(err.Error(), "failed") {
				t.Errorf("the duplicate: %v", err)
			}
			r.must(tx, "ROLLBACK TO SAVEPOINT a")
			wantRows(t, r.stage(ctx, tx, increment, 1, 1), 1)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReplayed(t, k.Replayed(), i > 0)
			r.wantBalances(101)
		}
	})
}

func TestKeyARollbackLeavesNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, tx, _ := r.beginUnder("k")
		r.stage(ctx, tx, increment, 1, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100)
		r.wantReceipts(0)
		// It can be another request then.
		_, replayed := r.mustSendUnder("k", increment, 5, 1)
		wantReplayed(t, replayed, false)
		r.wantBalances(105)
		r.wantNoLog()
	})
}

func TestKeyRepeatedStagedGroupIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		rigs := newRigs(t, logDB)
		send := func(by int) (results []sql.Result, replayed bool, err error) {
			t.Helper()
			ctx, k := keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rigs {
				results = append(results, r.stage(ctx, r.wrapped, increment, by, 1))
				tx, err := r.wrapped.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				// Without the context too it belongs to the request.
				r.must(tx, "UPDATE account SET balance = balance + ? WHERE id <= ?", by, 2)
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
			wantReplayed(t, replayed, i > 0)
			for _, res := range results {
				wantRows(t, res, 1)
			}
		}
		results, replayed, err := send(2)
		wantReused(t, "End of another request", err)
		wantReplayed(t, replayed, false)
		for i, r := range rigs {
			wantResult(t, results[i], bedsql.ErrKeyReused)
			r.wantBalances(102, 101)
			r.wantReceipts(1)
		}
		rigs[0].wantNoLog() // also not parked: it can never be applied
	})
}
