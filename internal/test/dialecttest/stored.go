package dialecttest

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/txlog"
)

// Stored is of the rows that an older version left in the log.
type Stored struct {
	// Params are the DSN's parameters that its settings were read from.
	Params []string
	// Blob, Double and Time are the types of columns.
	Blob, Double, Time string
}

// What an older version stored is read, and delivered as it would have been.
func (k *Kit) stored(t *testing.T) {
	t.Parallel()
	logDB, targetDB := k.DB(t), k.DB(t)
	log, err := txlog.Open(t.Context(), k.Name, logDB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for row := range strings.SplitSeq(strings.TrimSpace(cases.Text(t, "params/rows-"+k.Name+".sql")), ";\n") {
		Must(t, logDB.Open(t), row)
	}
	dsn := targetDB.DSN
	for _, param := range k.Stored.Params {
		dsn = k.WithParam(dsn, param)
	}
	db := Open(t, k.Name, dsn)
	Must(t, db, "CREATE TABLE events (id INT PRIMARY KEY, n BIGINT, f "+k.Stored.Double+", s VARCHAR(99), b "+k.Stored.Blob+", at "+k.Stored.Time+")")
	target, err := k.Target(dsn)
	if err != nil {
		t.Fatal(err)
	}
	job, err := asyncjob.New(log, asyncjob.Targets{"orders": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	if err != nil {
		t.Fatal(err)
	}
	report, err := job.RunOnce(t.Context())
	if err != nil || report.Delivered != 5 {
		t.Errorf("the job reports %+v, %v", report, err)
	}
	if units, err := log.List(t.Context(), txlog.Filter{}); err != nil || len(units) != 0 {
		t.Errorf("in the log are left %+v, %v", units, err)
	}
	// The same, sent to the database directly.
	args := []any{101, int64(math.MaxInt64), 0.1, `O'Brien \ "日本"`, []byte{0, 255}, time.Date(2024, 5, 1, 10, 0, 0, 123456000, time.UTC)}
	markers := make([]string, len(args))
	for i := range markers {
		markers[i] = strings.ReplaceAll(k.Values.Marker, "1", string(rune('1'+i)))
	}
	if _, err := db.Exec("INSERT INTO events (id, n, f, s, b, at) VALUES ("+strings.Join(markers, ", ")+")", args...); err != nil {
		t.Fatal(err)
	}
	Must(t, db, `INSERT INTO events (id, s) VALUES (102, 'C:\\tmp')`, "INSERT INTO events (id, s, n) VALUES (104, 'unit', 1)")
	for pairs, same := range map[string]string{
		"(a.id IN (1, 3, 5) AND b.id = 101)": "a.n = b.n AND a.f = b.f AND a.s = b.s AND a.b = b.b AND a.at = b.at",
		"(a.id = 2 AND b.id = 102)":          "a.s = b.s AND a.n IS NULL",
		"(a.id = 4 AND b.id = 104)":          "a.s = b.s AND a.n = b.n AND a.f IS NULL AND a.at IS NULL",
	} {
		var n int
		if err := db.QueryRow("SELECT COUNT(*) FROM events a, events b WHERE " + pairs + " AND " + same).Scan(&n); err != nil || n != strings.Count(pairs, ",")+1 {
			t.Errorf("%s: %d rows are the same, %v", pairs, n, err)
		}
	}
}
