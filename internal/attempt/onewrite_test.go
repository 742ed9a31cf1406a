package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// modes is a MySQL session that is only asked for its sql_mode.
type modes struct {
	driver.Conn
	asked int
}

func (m *modes) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	m.asked++
	return &modeRow{}, nil
}

type modeRow struct{ read bool }

func (*modeRow) Columns() []string { return []string{"mode"} }
func (*modeRow) Close() error      { return nil }

func (r *modeRow) Next(dest []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read, dest[0] = true, "NO_BACKSLASH_ESCAPES"
	return nil
}

// A batch of units repeats one text, which is read once.
func TestARepeatedTextIsReadOnce(t *testing.T) {
	t.Parallel()
	mysql := &dialect.Dialect{Flavor: sqltext.MySQL}
	odd := entry.Statement{SQL: `UPDATE t SET a = 'x\' , b = '; DELETE FROM t; -- '`}
	other, ddl := entry.Statement{SQL: "UPDATE t SET a = 1"}, entry.Statement{SQL: "DROP TABLE t"}
	if _, sure := sqltext.IsOneWrite(sqltext.MySQL, odd.SQL); sure {
		t.Fatal("the text does not depend on the session")
	}
	for _, c := range []struct {
		statements   []entry.Statement
		asked, wrong int // wrong is the statement that is no DML
	}{
		{[]entry.Statement{odd, odd, odd}, 1, 0},
		{[]entry.Statement{odd, other, other, odd}, 2, 0},
		{[]entry.Statement{other, other, ddl, ddl}, 0, 3},
		{[]entry.Statement{ddl, ddl}, 0, 1},
	} {
		conn := new(modes)
		err := OnlyDML(t.Context(), mysql, conn, c.statements)
		var not *NotOneDML
		if wrong := errors.As(err, &not); wrong != (c.wrong > 0) || wrong && not.Statement != c.wrong || !wrong && err != nil {
			t.Errorf("%v: got %v", c.statements, err)
		}
		if conn.asked != c.asked {
			t.Errorf("%v: the session was asked %d times, want %d", c.statements, conn.asked, c.asked)
		}
	}
}
