package dialecttest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Values are tried on columns of every kind, sent as the DSN parameters of Modes
// say.
type Values struct {
	Modes, Columns []string
	Setup          []string
	Of             func() []any
	// Marker is the parameter of an INSERT, Shown what tells stored values apart.
	Marker, Shown string
	// Returning is whether an INSERT gives Shown back itself.
	Returning bool
	// SameErrors: what cannot be stored directly cannot be stored from the log
	// either, and is refused.
	SameErrors bool
	// Skip leaves a value out.
	Skip func(column string, v any) bool
	// Least is how many are stored at least in each mode.
	Least int
}

// Replayed is what the driver receives when a value comes back from the log.
func Replayed(d *delivery.Dialect, v any) (any, error) {
	kept, err := d.Storable(v)
	if err != nil {
		return nil, err
	}
	text, err := txlog.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: kept}})
	if err != nil {
		return nil, err
	}
	args, err := txlog.DecodeParams(text)
	if err != nil {
		return nil, err
	}
	return args[0].Value, nil
}

// Every value is inserted directly and as it comes back from the log. If the
// database takes the first, it must store the second the same.
func (k *Kit) values(t *testing.T) {
	t.Parallel()
	for mode, param := range k.Values.Modes {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			target := k.DB(t)
			db := Open(t, k.Name, k.WithParam(target.DSN, param))
			Must(t, db, k.Values.Setup...)
			c := Conn(t, db)
			stored := 0
			for i, column := range k.Values.Columns {
				if mode > 0 && len(k.Values.Columns) > 20 && i%3 != 0 {
					continue // what the value's own type decides is the same for all columns
				}
				table := fmt.Sprintf("v%d", i)
				Must(t, c, "CREATE TEMPORARY TABLE "+table+" (v "+column+")")
				for _, v := range k.Values.Of() {
					if k.Values.Skip == nil || !k.Values.Skip(column, v) {
						stored += k.value(t, c, table, column, v)
					}
				}
			}
			if stored < k.Values.Least {
				t.Errorf("only %d values were stored at all", stored)
			}
		})
	}
}

// value gives 1 for a value that was stored.
func (k *Kit) value(t *testing.T, c *sql.Conn, table, column string, v any) int {
	t.Helper()
	direct, refused := k.store(c, table, v)
	if refused != nil && !k.Values.SameErrors {
		return 0
	}
	back, err := Replayed(k.Dialect, v)
	if err != nil {
		t.Errorf("%s: %T(%v): %v", column, v, v, err)
		return 0
	}
	again, err := k.store(c, table, back)
	if (err == nil) != (refused == nil) || again != direct {
		t.Errorf("%s: %T(%v) is stored as %v (%v), from the log (%T) as %v (%v)", column, v, v, direct, refused, back, again, err)
	}
	if refused != nil {
		k.classIs(t, column, refused, delivery.Refused)
		return 0
	}
	return 1
}

func (k *Kit) store(c *sql.Conn, table string, v any) (shown sql.NullString, err error) {
	ctx, insert := context.Background(), "INSERT INTO "+table+" VALUES ("+k.Values.Marker+")"
	if k.Values.Returning {
		err = c.QueryRowContext(ctx, insert+" RETURNING "+k.Values.Shown, v).Scan(&shown)
		return shown, err
	}
	if _, err = c.ExecContext(ctx, "DELETE FROM "+table); err == nil {
		if _, err = c.ExecContext(ctx, insert, v); err == nil {
			err = c.QueryRowContext(ctx, "SELECT "+k.Values.Shown+" FROM "+table).Scan(&shown)
		}
	}
	return shown, err
}

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
