package driver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestRowsAreReadToTheirEndFirst(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account()
		insert := "INSERT INTO account SELECT n, n * 10 FROM (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 300) SELECT n FROM c) s RETURNING id, balance"
		rows, err := r.Wrapped.Query(insert)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		// Not one row was fetched, and it is done.
		if n := r.Count("SELECT count(*) FROM account"); n != 300 {
			t.Errorf("%d rows are there before the first was fetched, want 300", n)
		}
		r.WantNoLog()
		n := 0
		for rows.Next() {
			var id, balance int
			if err := rows.Scan(&id, &balance); err != nil {
				t.Fatal(err)
			}
			n++
			if balance != 10*id {
				t.Fatalf("row %d, %d", id, balance)
			}
		}
		if n != 300 || rows.Err() != nil {
			t.Errorf("%d rows, %v; want 300", n, rows.Err())
		}
	})
}

func TestUnfetchedRowsAreWritten(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account()
		rows, err := r.Wrapped.Query("INSERT INTO account VALUES (1, 1), (2, 2), (3, 3) RETURNING id")
		if err != nil {
			t.Fatal(err)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		var id int
		if err := r.Wrapped.QueryRow("INSERT INTO account VALUES (4, 4), (5, 5) RETURNING id").Scan(&id); err != nil || id != 4 {
			t.Errorf("the first id is %d, %v; want 4", id, err)
		}
		if _, err := r.Wrapped.Exec("INSERT INTO account VALUES (6, 6) RETURNING id"); err != nil {
			t.Error(err)
		}
		r.WantBalances(1, 2, 3, 4, 5, 6)
		r.WantNoLog()
	})
}

func TestBufferedRowsKeepValuesAndColumnTypes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		kinds(r)
		for _, c := range []struct {
			query string
			args  []any
		}{
			{query: "DELETE FROM kinds RETURNING *"},
			{query: "DELETE FROM kinds WHERE id > ? RETURNING *", args: []any{0}},
			{query: "DELETE FROM kinds WHERE id = 99 RETURNING id, price"},
		} {
			fill := "INSERT INTO kinds VALUES (2, 'bb', 2.25, 'x', '2024-05-06 07:08:09', NULL)"
			r.Exec("DELETE FROM kinds", fill)
			bare, err := r.Bare.Query(r.Q(c.query), c.args...)
			if err != nil {
				t.Fatal(err)
			}
			wantColumns, want := columns(t, bare), rig.Content(t, bare)
			_ = bare.Close()
			r.Exec("DELETE FROM kinds", fill)
			wrapped, err := r.Wrapped.Query(r.Q(c.query), c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := columns(t, wrapped); !reflect.DeepEqual(got, wantColumns) {
				t.Errorf("%s: columns are %+v\nwant %+v", c.query, got, wantColumns)
			}
			if got := rig.Content(t, wrapped); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: rows are %#v\nwant %#v", c.query, got, want)
			}
			_ = wrapped.Close()
		}
		r.WantNoLog()
	})
}

func TestALaterRowThatFailsRefusesTheWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		// The 200th row finds its key taken.
		r.Exec("INSERT INTO account VALUES (200, 0)")
		insert := "INSERT INTO account SELECT n, n FROM (WITH RECURSIVE c (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < 300) SELECT n FROM c) s RETURNING id"
		rows, err := r.Wrapped.Query(insert)
		if err == nil {
			_ = rows.Close()
		}
		r.WantOutcome(rig.Refused, err)
		if !rig.IsDriversOwn(db, err) {
			t.Errorf("%T %v is not the driver's own bare error", err, err)
		}
		if n := r.Count("SELECT count(*) FROM account"); n != 2 {
			t.Errorf("%d rows, want the two from before", n)
		}
	})
}

func TestFailingLaterRowRefusesTheWrite(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := rig.New(t, db)
	r.Account()
	// With the bare driver Query itself succeeds, the error comes with the
	// tenth row.
	insert := "INSERT INTO account SELECT n, 0 FROM generate_series(1, 20) n RETURNING 1 / (10 - id)"
	rows, err := r.Wrapped.Query(insert)
	if err == nil {
		_ = rows.Close()
	}
	r.WantOutcome(rig.Refused, err)
	if n := r.Count("SELECT count(*) FROM account"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestADeferredConstraintRefusesTheWrite(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(testing.TB) testdb.DB{"postgres": testdb.Postgres, "sqlite": testdb.SQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := rig.Enforced(fresh(t))
			r := rig.New(t, db)
			r.Guarded()
			for _, args := range [][]any{nil, {1, 99}} {
				query := "INSERT INTO late VALUES (1, 99) RETURNING id"
				if args != nil {
					query = r.Q("INSERT INTO late VALUES (?, ?) RETURNING id")
				}
				err := r.Wrapped.QueryRow(query, args...).Scan(new(int))
				r.WantOutcome(rig.Refused, err)
				if !rig.IsDriversOwn(db, err) {
					t.Errorf("%T %v is not the driver's own bare error", err, err)
				}
			}
			r.WantGuardedUntouched()
		})
	}
}

func TestRowsLostWithTheConnectionAreReportedLost(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account()
		match := testproxy.PostgresExecute
		if db.Driver == testdb.DriverMySQL {
			match = testproxy.Text("INSERT INTO account")
		}
		p.CutAfter(match)
		err := r.Wrapped.QueryRow("INSERT INTO account VALUES (1, 5) RETURNING id").Scan(new(int))
		// The retry meets the row of the attempt whose answer was lost.
		if !errors.Is(err, bedsql.ErrRowsUnknown) {
			t.Errorf("%v, want ErrRowsUnknown: delivered, with its rows lost", err)
		}
		rig.WantOutcomeOf(t, "the rows were lost", err, bedsql.OutcomeDelivered)
		r.WantBalances(5)
		r.WantNoLog()

		p.CutBefore(match)
		var id int
		if err := r.Wrapped.QueryRow("INSERT INTO account VALUES (2, 5) RETURNING id").Scan(&id); err != nil || id != 2 {
			t.Errorf("id %d, %v; want the retry's own row 2", id, err)
		}
		r.WantBalances(5, 5)
		r.WantNoLog()
	})
}

// The server did what it was asked for: another attempt would do it twice.
func TestWriteWithUndecodableRowsIsDoneOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"simple_protocol", "exec"} {
		for _, g := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			t.Run(fmt.Sprint(mode, ", guarantee ", g), func(t *testing.T) {
				t.Parallel()
				db := rig.WithParam(rig.WithParam(testdb.Postgres(t), "default_query_exec_mode", mode), "datestyle", "SQL, DMY")
				r := rig.New(t, db, func(cfg *bedsql.Config) { cfg.Guarantee = g })
				r.Exec("CREATE TABLE visit (day DATE, n INT)", "INSERT INTO visit VALUES ('infinity', 0), ('31/12/2020', 0)")
				// The first row can be read, the second cannot.
				read := func(ctx context.Context, pool *sql.DB, args ...any) string {
					update := "UPDATE visit SET n = n + 1 WHERE n >= 0 RETURNING day, n"
					if len(args) > 0 {
						update = strings.Replace(update, "0", "$1", 1)
					}
					rows, err := pool.QueryContext(ctx, update, args...)
					if err != nil {
						return fmt.Sprintf("%T %v", err, err)
					}
					defer func() { _ = rows.Close() }()
					n := 0
					for ; rows.Next(); n++ {
					}
					return fmt.Sprintf("%d rows, then %v", n, rows.Err())
				}
				ctx := context.Background()
				want, applied := read(ctx, r.Bare), 1
				if !strings.HasPrefix(want, "1 rows, then convert field") {
					t.Fatalf("the bare driver gives %s", want)
				}
				for _, args := range [][]any{nil, {0}} {
					got := read(ctx, r.Wrapped, args...)
					if applied++; got != want {
						t.Errorf("parameters %v: the wrapper gives %s, the driver %s", args, got, want)
					}
				}
				if g == bedsql.ExactlyOnce {
					applied++
					for range 2 { // the second is answered from what was kept
						keyed, _ := bedsql.WithIdempotencyKey(ctx, "visit")
						if got := read(keyed, r.Wrapped); !strings.HasPrefix(got, "1 rows, then ") || !strings.Contains(got, "convert field") {
							t.Errorf("under a key the wrapper gives %s, the driver %s", got, want)
						}
					}
				}
				r.RunOnce()
				r.WantNoLog()
				if n := r.Count("SELECT max(n) FROM visit"); n != applied {
					t.Errorf("the write was applied %d times, want %d", n, applied)
				}
			})
		}
	}
}

// Rows of a write wait in memory until it is complete: more than 64 MiB of them are not held.
func TestReturnedRowsAreBoundedInMemory(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			r := rig.New(t, rig.FreshLike(t, db), guarantee)
			r.Account()
			megabyte := "REPEAT('x', 1000000)"
			if db.Driver == testdb.DriverSQLite {
				megabyte = "hex(zeroblob(500000))"
			}
			insert := func(from int) string {
				return fmt.Sprintf("INSERT INTO account SELECT n, 0 FROM (WITH RECURSIVE c (n) AS (SELECT %d UNION ALL SELECT n + 1 FROM c WHERE n < %d) SELECT n FROM c) s RETURNING id, %s", from, from+79, megabyte)
			}
			read := func(rows *sql.Rows, err error) (n int, _ error) {
				if err != nil {
					return 0, err
				}
				defer func() { _ = rows.Close() }()
				for rows.Next() {
					n++
				}
				return n, rows.Err()
			}
			n, err := read(r.Wrapped.Query(insert(1)))
			if n < 60 || n >= 80 || !errors.Is(err, bedsql.ErrRowsUnknown) || bedsql.OutcomeOf(err) != bedsql.OutcomeDelivered || !strings.Contains(err.Error(), "64 MiB") {
				t.Errorf("%d rows, %v (%v); want some, and that the rest was dropped", n, err, bedsql.OutcomeOf(err))
			}
			r.WantNoLog()
			ctx := bedsql.RequireRows(t.Context(), 80)
			if _, err = read(r.Wrapped.QueryContext(ctx, insert(101))); !errors.Is(err, bedsql.ErrRowsUnknown) {
				t.Errorf("of a required number: %v", err)
			}
			if n := r.Count("SELECT count(*) FROM account"); n != 160 {
				t.Errorf("%d rows are there, want 160", n)
			}
			tx, err := r.Wrapped.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if db.Driver != testdb.DriverSQLite {
				if n, err := read(tx.Query("SELECT id, " + megabyte + " FROM account WHERE id <= 80 FOR UPDATE")); n != 80 || err != nil {
					t.Errorf("a query in a transaction: %d rows, %v", n, err)
				}
			}
			if n, err := read(tx.Query(insert(201))); n != 80 || err != nil {
				t.Errorf("a write in a transaction: %d rows, %v", n, err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		})
	})
}
