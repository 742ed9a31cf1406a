package attempt

import (
	"context"
	"database/sql/driver"
	"io"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// oneValue is a row with a value that cannot be logged.
type oneValue struct {
	value driver.Value
	done  bool
}

func (*oneValue) Columns() []string { return []string{"n"} }
func (*oneValue) Close() error      { return nil }
func (r *oneValue) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	dest[0] = r.value
	return nil
}

// A request whose answer could not be repeated must not be applied.
func TestUnstorableAnswerRefusesTheRequestUnsent(t *testing.T) {
	t.Parallel()
	rows, err := BufferWrite(new(dialect.Dialect), &oneValue{value: complex(1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	var a Answer
	a.Add(Prints{}, nil, rows)
	out := StoreAnswer(context.Background(), new(dialect.Dialect), nil, &entry.Unit{Receipt: "k", Fingerprint: "f"}, Receipts{}, a)
	if out.Class != dialect.Refused || out.Err == nil || !strings.Contains(out.Err.Error(), "cannot be kept") || !strings.Contains(out.Err.Error(), "complex128") {
		t.Errorf("the outcome is %v: %v; want a refusal that names the type", out.Class, out.Err)
	}
}
