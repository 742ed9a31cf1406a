package sqlite

import (
	"database/sql"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/dialecttest"
	"github.com/bedsql/bed/internal/test/testdb"
	"modernc.org/sqlite"
)

var (
	must = dialecttest.Must
	conn = dialecttest.Conn
)

func classIs(t *testing.T, what string, err error, want dialect.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	} else if got := classify(err); got != want {
		t.Errorf("%s: %T %v is %v, want %v", what, err, err, got, want)
	}
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	return dialecttest.Open(t, name, dsn)
}

const schema = `CREATE TABLE t (id INTEGER PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), u INT UNIQUE, i INT);
	CREATE TABLE child (id INTEGER PRIMARY KEY, t INT NOT NULL REFERENCES t (id));
	CREATE TABLE keyed (a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID;
	CREATE TABLE strict (n INT) STRICT;
	CREATE TABLE strings (rowid_ INT);
	INSERT INTO t VALUES (1, 1, 1, 1); INSERT INTO keyed VALUES ('a', 'b'); INSERT INTO strings (rowid, rowid_) VALUES (1, 1);
	CREATE VIEW v AS SELECT 1 AS one;
	CREATE TRIGGER no BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'no'); END`

func TestDialect(t *testing.T) {
	const insert = "INSERT INTO t (id, n) VALUES (@b, ?)"
	dialecttest.Exercise(t, dialecttest.Kit{
		Name: name, Dialect: sqliteDialect, Target: Target, NewConnector: NewConnector, Neutral: neutral,
		DB: func(t testing.TB) testdb.DB {
			db := testdb.SQLite(t)
			db.DSN += "&_pragma=foreign_keys(1)"
			return db
		},
		WithParam: func(dsn, param string) string { return dsn + "&" + param },
		Code: func(code string) dialect.Class {
			n, _ := strconv.Atoi(code)
			return meaning(n).Class
		},
		Own: func(testing.TB) map[string][]string {
			var codes []string
			for code := range sqlite.ErrorCodeString {
				if code != 0 && code != 100 && code != 101 { // OK, ROW and DONE
					codes = append(codes, strconv.Itoa(code))
				}
			}
			for extended := 1; extended < 16; extended++ { // of each primary code
				for primary := 1; primary < 29; primary++ {
					codes = append(codes, strconv.Itoa(extended<<8|primary))
				}
			}
			return map[string][]string{"ErrorCodeString": codes}
		},
		BadConn: dialect.Unreachable,
		Schema: []string{
			schema, "CREATE TABLE r (i INT UNIQUE ON CONFLICT ROLLBACK)", "INSERT INTO r VALUES (1)",
			"CREATE TABLE tr (i INT); CREATE TRIGGER back BEFORE INSERT ON tr BEGIN SELECT RAISE(ROLLBACK, 'back'); END",
		},
		Misfits: []dialecttest.Call{
			dialecttest.Misfit(insert, 1), dialecttest.Misfit(insert, sql.Named("a", 1)), dialecttest.Misfit(insert, uint64(1<<63)),
			dialecttest.Misfit(insert, struct{}{}),
		},
		Modes:         []string{""},
		BadDSN:        "a.db?bedDataSource=",
		RollbackFails: true,
		Values: dialecttest.Values{
			Modes:   []string{"", "_time_format=sqlite", "_time_integer_format=unix_nano", "_timezone=Asia%2FTokyo"},
			Columns: []string{""}, Marker: "?", Markers: "?, ?", Shown: "typeof(v) || quote(v)", SameErrors: true, Least: 15,
			Of: func() []any {
				paris, err := time.LoadLocation("Europe/Paris")
				if err != nil {
					t.Fatal(err)
				}
				return []any{
					nil, true, int64(math.MinInt64), 0.1, 1e300, math.Inf(-1), math.NaN(), "text", "nul\x00\xff", []byte(nil), []byte{}, []byte{0, 255},
					time.Date(2024, 5, 1, 10, 0, 0, 123456789, paris), time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("x", 5400)), time.Time{},
					time.Date(2024, 5, 1, 10, 0, 0, 0, testdb.LocalZone(t, "CEST", 2*time.Hour)),
				}
			},
		},
	})
}
