package attempt

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"
)

// cutRows end with an error after n rows.
type cutRows struct {
	n   int
	err error
}

func (*cutRows) Columns() []string { return []string{"n"} }
func (*cutRows) Close() error      { return nil }
func (r *cutRows) Next(dest []driver.Value) error {
	if r.n == 0 {
		return r.err
	}
	r.n--
	dest[0] = int64(r.n)
	return nil
}

// Only io.EOF itself is the rows' end, as it is to database/sql: one that is
// wrapped is the end of a connection.
func TestPoint07_ABrokenConnectionIsNotTheRowsEnd(t *testing.T) {
	t.Parallel()
	if rows, err := Buffer(&cutRows{n: 2, err: io.EOF}); err != nil || len(rows.rows) != 2 {
		t.Errorf("whole rows: %v, %v", rows, err)
	}
	cut := fmt.Errorf("reading from the server: %w", io.EOF)
	if _, err := Buffer(&cutRows{n: 2, err: cut}); !errors.Is(err, cut) {
		t.Errorf("cut rows: %v, want their error", err)
	}
}
