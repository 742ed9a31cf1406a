package attempt

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
)

// cutRows end with an error after n rows.
type cutRows struct {
	n           int
	err, closed error
}

func (*cutRows) Columns() []string { return []string{"n"} }
func (r *cutRows) Close() error    { return r.closed }
func (r *cutRows) Next(dest []driver.Value) error {
	if r.n == 0 {
		return r.err
	}
	r.n--
	dest[0] = int64(r.n)
	return nil
}

// Only io.EOF itself ends the rows, as in database/sql: a wrapped one means a broken connection.
func TestABrokenConnectionIsNotTheRowsEnd(t *testing.T) {
	t.Parallel()
	if rows, err := BufferWrite(new(dialect.Dialect), &cutRows{n: 2, err: io.EOF}); err != nil || len(rows.rows) != 2 {
		t.Errorf("whole rows: %v, %v", rows, err)
	}
	cut := fmt.Errorf("reading from the server: %w", io.EOF)
	if _, err := BufferWrite(new(dialect.Dialect), &cutRows{n: 2, err: cut}); !errors.Is(err, cut) {
		t.Errorf("cut rows: %v, want their error", err)
	}
}

func TestUndecodableRowsEndLikeTheDrivers(t *testing.T) {
	t.Parallel()
	decode, server := errors.New("convert field 0 failed"), errors.New("refused at the end")
	d := &dialect.Dialect{Undecoded: func(err error) bool { return errors.Is(err, decode) }}
	rows, err := BufferWrite(d, &cutRows{n: 2, err: decode})
	if err != nil {
		t.Fatal(err)
	}
	for _, again := range []*Rows{rows.Again(), rows} {
		dest := make([]driver.Value, 1)
		for n := range 2 {
			if err := again.Next(dest); err != nil {
				t.Errorf("row %d: %v", n, err)
			}
		}
		if err := again.Next(dest); !errors.Is(err, decode) {
			t.Errorf("behind the rows: %v, want %v", err, decode)
		}
	}
	if _, err := BufferWrite(d, &cutRows{n: 2, err: decode, closed: server}); !errors.Is(err, server) {
		t.Errorf("a statement that failed behind: %v, want %v", err, server)
	}
	if _, err := BufferWrite(d, &cutRows{n: 2, err: server}); !errors.Is(err, server) {
		t.Errorf("an error that is not of decoding: %v, want %v", err, server)
	}
}
