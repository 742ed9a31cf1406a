package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func required(r entry.Requirement, text string, args ...any) dialect.Call {
	c := call(text, args...)
	c.Required = r
	return c
}

func TestAtomicChecksRequiredRowsInOneRoundTrip(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		proxy := testproxy.New(t, db.Addr())
		e := receiptful(t, db, proxy.Addr(), mode, stock, "INSERT INTO stock VALUES (1, 10), (2, 2000)",
			"CREATE VIEW shelf AS SELECT * FROM stock", `CREATE TABLE "odd;) RETURNING" (id int)`)
		for _, test := range []struct {
			text       string
			args       []any
			met, unmet entry.Requirement
			got        int64
		}{
			{"UPDATE stock SET n = n + 1", nil, entry.Exactly(2), entry.Exactly(1), 2},
			{"update stock set n = n + 1 -- it's all ) RETURNING", nil, entry.AtLeast(2), entry.AtLeast(3), 2},
			{"/* first */ UPDATE shelf SET n = n + $1 WHERE id = $2 ;", []any{int64(3), int64(1)}, entry.Exactly(1), entry.Exactly(2), 1},
			{"UPDATE stock SET n = n + $1 WHERE id = $2 RETURNING id, n", []any{int64(1), int64(2)}, entry.Exactly(1), entry.AtLeast(5), 1},
			{"DELETE FROM stock WHERE n < $1", []any{int64(0)}, entry.Exactly(0), entry.Exactly(1), 0},
			{"INSERT INTO stock VALUES ($1, $2) ON CONFLICT DO NOTHING", []any{int64(1), int64(5)}, entry.Exactly(0), entry.AtLeast(1), 0},
			{"INSERT INTO stock VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET n = stock.n + $1", []any{int64(2)}, entry.Exactly(1), entry.Exactly(0), 1},
			{`INSERT INTO "odd;) RETURNING" SELECT length(')(') FROM stock`, nil, entry.Exactly(2), entry.Exactly(3), 2},
		} {
			for _, receipted := range []bool{false, true} {
				calls := func(id string, r entry.Requirement) (all []dialect.Call) {
					if receipted {
						all = append(all, receipt(id))
					}
					return append(all, required(r, test.text, test.args...))
				}
				for _, id := range []string{"first", "second"} {
					must(t, e.direct, "DELETE FROM bed_receipt")
					n := proxy.Count(func([]byte) bool { return true })
					results, err := e.atomic(calls(id, test.met)...)
					if err != nil {
						t.Fatalf("%s: %v", test.text, err)
					}
					if got, _ := results[len(results)-1].RowsAffected(); got != test.got {
						t.Errorf("%s: %d rows, want %d", test.text, got, test.got)
					}
					want := 1
					if mode == pgx.QueryExecModeDescribeExec && (receipted || len(test.args) > 0) {
						want = 2
					}
					if got := n(); id == "second" && got != want {
						t.Errorf("%s: %d messages, want %d", test.text, got, want)
					}
				}
				const all = "SELECT SUM(n) + 1000 * COUNT(*) FROM stock"
				var before int64
				if err := e.direct.QueryRow(all).Scan(&before); err != nil {
					t.Fatal(err)
				}
				for range 2 { // what is known of a text outlives that it is refused
					_, err := e.atomic(calls("unmet", test.unmet)...)
					var rows *dialect.RowsError
					if !errors.As(err, &rows) || rows.Got != test.got || dialect.Unmet(test.unmet, test.got).Error() != rows.Error() {
						t.Errorf("%s under %v: %v, want a RowsError of %d", test.text, test.unmet, err, test.got)
					}
					classIs(t, test.text, err, dialect.Refused)
				}
				e.inState('I')
				e.is(all, before)
				e.is("SELECT COUNT(*) FROM bed_receipt WHERE id = 'unmet'", 0)
			}
		}
	})
}

// A write that cannot be part of a query takes its round trips. The attempt in one query applied no
// part of it.
func TestAtomicLeavesWhatItCannotCountOnTheWay(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)", "CREATE TABLE seen (id int)",
			"CREATE TABLE ruled (id int)", "CREATE RULE r AS ON INSERT TO ruled DO ALSO INSERT INTO seen VALUES (NEW.id)")
		for _, text := range []string{
			"WITH gone AS (DELETE FROM stock RETURNING *) INSERT INTO stock SELECT id + 1, n FROM gone",
			"MERGE INTO stock USING (VALUES (1)) AS s (id) ON s.id = stock.id WHEN MATCHED THEN UPDATE SET n = n + 1",
			"INSERT INTO ruled VALUES (7)",
			"UPDATE stock SET n = 11; UPDATE stock SET n = 12",
			"UPDATE stock SET n = 11) SELECT 1 AS n FROM bed_write; --",
			"UPDATE stock SET n = 11 RETURNING 1), more AS (DELETE FROM stock RETURNING (1",
			"UPDATE stock SET n = (11",
			"UPDATE stock SET n = 'x",
			"UPDATE nowhere SET n = 1",
			"SELECT 1",
			"",
		} {
			results, handled, err := atomicOn(t, e.c, receipt("r"), required(entry.Exactly(1), text))
			if handled || results != nil || err != nil {
				t.Errorf("%s: handled %t, %v, %v", text, handled, results, err)
			}
			e.inState('I')
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 11)
			e.is("SELECT (SELECT COUNT(*) FROM bed_receipt) + (SELECT COUNT(*) FROM seen)", 0)
		}
	})
}

func TestAtomicErrorOfAWriteUnderRequiredRowsIsItsOwn(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)", "CREATE TABLE moody (id int)",
			"CREATE FUNCTION mood() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL::text || CAST('bed_rows: 0' AS int); END $$",
			"CREATE TRIGGER mood BEFORE INSERT ON moody FOR EACH ROW EXECUTE FUNCTION mood()")
		for text, class := range map[string]dialect.Class{
			"INSERT INTO stock VALUES (1, 11)":                                 dialect.Duplicate,
			"UPDATE stock SET n = -1":                                          dialect.Refused,
			"UPDATE stock SET n = CAST('x' || n AS int)":                       dialect.Refused,
			"UPDATE stock SET n = CAST('bed_rows: 1' || substr('', n) AS int)": dialect.Refused,
			"INSERT INTO moody VALUES (1)":                                     dialect.Refused,
		} {
			_, err := e.atomic(receipt("r"), required(entry.Exactly(1), text))
			if _, ok := err.(*pgconn.PgError); !ok {
				t.Errorf("%s: %T %v is not the database's own error", text, err, err)
			}
			classIs(t, text, err, class)
			e.is("SELECT SUM(n) + (SELECT COUNT(*) FROM bed_receipt) FROM stock", 10)
		}
	})
}
