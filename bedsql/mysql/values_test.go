package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

type (
	named       int8
	namedUint   uint16
	namedText   string
	namedBytes  []byte
	namedJSON   json.RawMessage
	valuer      struct{ v driver.Value }
	ptrValuer   struct{ v driver.Value }
	failing     struct{}
	namedTime   time.Time
	namedFloat  float32
	namedSlices []string
)

func (v valuer) Value() (driver.Value, error)     { return v.v, nil }
func (v *ptrValuer) Value() (driver.Value, error) { return "from pointer", nil }
func (failing) Value() (driver.Value, error)      { return nil, errors.New("no value today") }

func TestUndialledConnectionChecksValuesAsTheDriverDoes(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	seven, text, now := 7, "text", time.Now()
	pp := &text
	for _, v := range []any{
		nil, true, 1, int8(-1), int16(2), int32(3), int64(math.MinInt64), uint(4), uint8(5), uint16(6), uint32(7),
		uint64(math.MaxUint64), float32(0.1), math.Inf(1), "x", []byte("b"), []byte(nil), now, time.Second,
		named(1), namedUint(2), namedText("n"), namedBytes("nb"), namedBytes(nil), namedJSON(`{}`), namedFloat(1.5),
		json.RawMessage(`{"a":1}`), json.RawMessage(nil), json.Number("12"), &seven, (*int)(nil), &text, &pp, &now,
		valuer{int64(1)}, valuer{uint64(math.MaxUint64)}, valuer{uint32(1)}, valuer{nil}, valuer{[]int{1}},
		&valuer{"v"}, (*valuer)(nil), &ptrValuer{}, (*ptrValuer)(nil), failing{},
		sql.NullInt64{Int64: 5, Valid: true}, sql.NullString{}, sql.Null[uint64]{V: 1, Valid: true},
		namedTime(now), namedSlices{"a"}, []int{1}, []string{"a"}, [3]byte{}, map[string]int{}, struct{}{},
		complex(1, 2), func() {}, make(chan int), &struct{ A int }{}, [][]byte{{1}}, &[]byte{1},
	} {
		var want, got driver.NamedValue
		want.Value, got.Value = v, v
		var wantErr error
		if err := conn.Raw(func(c any) error {
			wantErr = c.(driver.NamedValueChecker).CheckNamedValue(&want)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		gotErr := newDialect(nil).CheckNamedValue(&got)
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("%T: error %v, the driver says %v", v, gotErr, wantErr)
			continue
		}
		if gotErr == nil && !reflect.DeepEqual(got.Value, want.Value) {
			t.Errorf("%T: %T(%v), the driver makes it %T(%v)", v, got.Value, got.Value, want.Value, want.Value)
		}
	}
}
