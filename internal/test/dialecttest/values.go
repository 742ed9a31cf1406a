package dialecttest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// Values are tried on columns of every kind, sent as the DSN parameters of Modes
// say.
type Values struct {
	Modes, Columns []string
	Setup          []string
	Of             func() []any
	// Marker is the parameter of an INSERT, Shown an expression that tells stored values apart.
	Marker, Shown string
	// Markers are those of an INSERT with two parameters.
	Markers string
	// Returning is whether an INSERT gives Shown back itself.
	Returning bool
	// SameErrors means that the log must refuse every value refused by a direct write.
	SameErrors bool
	// Skip leaves a value out.
	Skip func(column string, v any) bool
	// Unsteady leaves out a value that the driver sends in different ways, depending on the
	// connection's history.
	Unsteady func(v any) bool
	// Unsendable reports that the dialect refuses a kept value in the mode of a DSN parameter, before
	// anything runs.
	Unsendable func(param string, given, kept any) bool
	// Least is how many are stored at least in each mode.
	Least int
}

// Replayed returns a value as the driver receives it from the log.
func Replayed(d *dialect.Dialect, v any) (any, error) {
	kept, err := d.Storable(v)
	if err != nil {
		return nil, err
	}
	text, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: kept}})
	if err != nil {
		return nil, err
	}
	args, err := entry.DecodeParams(text)
	if err != nil {
		return nil, err
	}
	return args[0].Value, nil
}

// Every value is inserted directly and as it comes back from the log. If the database accepts the
// first, it must store the second the same.
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
						stored += k.value(t, c, param, table, column, v)
					}
				}
			}
			if stored < k.Values.Least {
				t.Errorf("only %d values were stored at all", stored)
			}
		})
	}
}

// value returns 1 for a stored value.
func (k *Kit) value(t *testing.T, c *sql.Conn, param, table, column string, v any) int {
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
	if refused == nil && k.Values.Unsendable != nil && k.Values.Unsendable(param, v, back) {
		return 0
	}
	again, err := k.store(c, table, back)
	if (err == nil) != (refused == nil) || again != direct {
		t.Errorf("%s: %T(%v) is stored as %v (%v), from the log (%T) as %v (%v)", column, v, v, direct, refused, back, again, err)
	}
	if refused != nil {
		k.classIs(t, column, refused, dialect.Refused)
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
