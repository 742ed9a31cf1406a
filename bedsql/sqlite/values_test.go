package sqlite

import (
	"database/sql/driver"
	"math"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestValuesFromTheLogAreStoredLikeTheOriginals(t *testing.T) {
	t.Parallel()
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	base := testdb.SQLite(t)
	for _, params := range []string{"", "&_time_format=sqlite", "&_time_integer_format=unix_nano", "&_timezone=Asia%2FTokyo"} {
		db := open(t, base.DSN+params)
		must(t, db, "DROP TABLE IF EXISTS v", "CREATE TABLE v (a, b)")
		for _, v := range []any{
			nil, true, int64(math.MinInt64), 0.1, 1e300, math.Inf(-1), math.NaN(), "text", "nul\x00\xff", []byte(nil), []byte{}, []byte{0, 255},
			time.Date(2024, 5, 1, 10, 0, 0, 123456789, paris), time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("x", 5400)), time.Time{},
		} {
			kept, err := Dialect().Storable(v)
			if err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			text, err := txlog.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: kept}})
			if err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			args, err := txlog.DecodeParams(text)
			if err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			if _, err := db.Exec("DELETE FROM v"); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("INSERT INTO v VALUES (?, ?)", v, args[0].Value); err != nil {
				t.Fatal(err)
			}
			var a, b string
			if err := db.QueryRow("SELECT typeof(a) || quote(a), typeof(b) || quote(b) FROM v").Scan(&a, &b); err != nil || a != b {
				t.Errorf("%q: %T is stored as %s, from the log as %s (%v)", params, v, a, b, err)
			}
		}
	}
}

func TestMonotonicClockIsNotKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	kept, err := Dialect().Storable(now)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := kept.(time.Time)
	if !ok || !got.Equal(now) || got.String() != now.Round(0).String() {
		t.Errorf("%v is kept as %v", now, kept)
	}
}
