package dialecttest

import (
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// A write with a required number of rows is applied if it changes that number. Otherwise it is
// rolled back and refused, in every form of sending.
func requiredRows(t *testing.T, k *Kit) {
	t.Parallel()
	for _, mode := range append([]string{""}, k.Modes...) {
		target := k.DB(t)
		direct := target.Open(t)
		Must(t, direct, "CREATE TABLE moved (n BIGINT NOT NULL)", "INSERT INTO moved VALUES (1), (2)")
		dsn := target.DSN
		if mode != "" {
			dsn = k.WithParam(dsn, mode)
		}
		count := func(query string) (n int64) {
			t.Helper()
			if err := direct.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		const rows = 2
		conn := Conn(t, Open(t, k.Name, dsn))
		write := func(r entry.Requirement, prepared bool) (out attempt.Outcome) {
			_ = Raw(t, conn, func(dc driver.Conn) error {
				call := dialect.Call{SQL: "UPDATE moved SET n = n + 1000", Prepared: prepared, Required: r}
				out = attempt.One(t.Context(), k.Dialect, dc, call, false, false)
				return nil
			})
			return out
		}
		moved := int64(0)
		for _, prepared := range []bool{false, true} {
			for _, unmet := range []entry.Requirement{entry.Exactly(0), entry.Exactly(rows + 1), entry.AtLeast(rows + 1)} {
				out := write(unmet, prepared)
				var is *dialect.RowsError
				if !errors.As(out.Err, &is) || is.Got != rows || out.Class != dialect.Refused || out.ConnLost {
					t.Errorf("%s, requiring %v of %d: %+v, want a RowsError", mode, unmet, rows, out)
				}
			}
			for _, met := range []entry.Requirement{entry.Exactly(rows), entry.AtLeast(1)} {
				out := write(met, prepared)
				if out.Err != nil {
					t.Errorf("%s, requiring %v of %d: %v", mode, met, rows, out.Err)
				} else if n, err := out.Result.RowsAffected(); n != rows || err != nil {
					t.Errorf("%s: %d rows, %v; want %d", mode, n, err, rows)
				}
				moved += 1000
				if least := count("SELECT MIN(n) FROM moved"); least/1000*1000 != moved {
					t.Errorf("%s: the first is %d, want it moved by %d", mode, least, moved)
				}
			}
		}
	}
}
