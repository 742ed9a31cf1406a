package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/dialecttest"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

type (
	myInt      int32
	myText     string
	myBytes    []byte
	myFloat    float32
	myBool     bool
	mySlice    []myText
	myUUID     [16]byte
	color      int
	colorText  string
	withJSON   int
	valuer     struct{ v driver.Value }
	ptrValuer  struct{ s string }
	structJSON struct {
		Name string `json:"name"`
		N    uint64 `json:"n"`
	}
	marshaler     struct{ n int }
	stringer      struct{ n int }
	asInt         struct{ n int64 }
	circularValue struct{}
)

func (color) String() string                      { return "red" }
func (colorText) String() string                  { return "shown" }
func (withJSON) MarshalJSON() ([]byte, error)     { return []byte(`"seven"`), nil }
func (v valuer) Value() (driver.Value, error)     { return v.v, nil }
func (p *ptrValuer) Value() (driver.Value, error) { return "of pointer", nil }
func (m marshaler) MarshalJSON() ([]byte, error)  { return fmt.Appendf(nil, `{"m":%d}`, m.n), nil }
func (stringer) String() string                   { return "s" }
func (a asInt) Int64Value() (pgtype.Int8, error)  { return pgtype.Int8{Int64: a.n, Valid: true}, nil }
func (c circularValue) Value() (driver.Value, error) {
	return c, nil
}

func pointerTo[T any](v T) *T { return &v }

// columns are the tested kinds of columns.
var columns = []string{
	"int2", "int4", "int8", "numeric", "float4", "float8", "text", "varchar(40)", `"char"`, "bool", "bytea", "uuid", "json", "jsonb",
	"date", "time", "timestamp", "timestamptz", "interval", "inet", "cidr", "int4[]", "int8[]", "numeric[]", "float8[]", "text[]", "bool[]", "uuid[]", "bytea[]",
	"timestamptz[]", "jsonb[]", "int4[][]", "inet[]", "cidr[]", "macaddr", "macaddr8", "macaddr[]", "date[]", "timestamp[]", "interval[]", "time[]", "varchar(3)[]", "json[]", "mood[]",
	"int4range", "int8range", "numrange", "daterange", "tstzrange", "int4multirange", "point", "varbit", "mood", "money", "xid8",
}

func acceptedValues() []any {
	paris, _ := time.LoadLocation("Europe/Paris")
	at := time.Date(2024, 5, 1, 10, 0, 0, 123456789, paris)
	id := uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	_, cidr, _ := net.ParseCIDR("10.1.0.0/16")
	return []any{
		nil, true, false, 7, int8(-8), int16(16), int32(65), int64(math.MaxInt64), uint(9), uint8('a'), uint16(2), uint32(math.MaxUint32), uint64(math.MaxUint64),
		float32(0.1), 0.1, 1e300, math.NaN(), math.Inf(1), float32(3), 3.0, "", "7", "text", "ü", "a", "t", "happy", `{"a": 1.10}`, "{1,2}", "2024-05-01", "1 day", "[1,5)", "10.0.0.1",
		"6ba7b810-9dad-11d1-80b4-00c04fd430c8", []byte(nil), []byte{}, []byte{0, 255, '\\'}, []byte(`{"b":2}`), []byte("x"),
		at, at.UTC(), time.Time{}, time.Date(2024, 1, 1, 23, 30, 0, 0, time.FixedZone("", -5*3600)), time.Duration(0), 90 * time.Minute, -1500 * time.Millisecond,
		myInt(5), myText("happy"), colorText("sad"), myBytes("mb"), myBytes(nil), myFloat(0.1), myBool(true), myUUID(id),
		pointerTo(7), (*int)(nil), pointerTo("p"), pointerTo(pointerTo("pp")), (*string)(nil), &at, (*time.Time)(nil), pointerTo(myInt(6)),
		valuer{int64(3)}, valuer{"v"}, valuer{nil}, valuer{[]byte("vb")}, valuer{at}, valuer{true}, valuer{2.5}, (*valuer)(nil), &ptrValuer{}, (*ptrValuer)(nil),
		valuer{id}, valuer{int32(4)}, valuer{[]string{"a", "b"}}, valuer{"2024-05-01 10:00:00+02"},
		id, uuid.NullUUID{}, uuid.NullUUID{UUID: id, Valid: true}, [16]byte(id), sql.NullString{String: "n", Valid: true}, sql.NullInt64{}, sql.Null[int32]{V: 3, Valid: true},
		json.RawMessage(`{"n": 12345678901234567890, "f": 1.50}`), json.RawMessage(nil), json.Number("12.50"), big.NewInt(0).Exp(big.NewInt(10), big.NewInt(30), nil), big.NewInt(12), (*big.Int)(nil),
		map[string]any{"a": 1, "b": []string{"<x>"}}, map[string]any(nil), map[string]string{"a": "b"}, structJSON{"x", math.MaxUint64}, &structJSON{"y", 1}, (*structJSON)(nil), marshaler{3}, &marshaler{4},
		[]structJSON{{"a", 1}}, []map[string]int{{"a": 1}},
		net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.1").To4(), net.ParseIP("::1"), net.IP(nil), *cidr, cidr, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1"), netip.MustParsePrefix("10.1.0.0/16"), netip.Addr{},
		[]int{1, 2}, []int32{1, 2}, []int64{1, -2}, []int16{1}, []uint64{1}, []float64{0.1, 2}, []float32{0.1}, []bool{true, false}, []string{"a", `b"\`, ""}, []string{}, []string(nil), [][]byte{{1}, nil, {2}},
		[]time.Time{at}, []time.Duration{time.Second}, []myInt{1, 2}, mySlice{"a"}, [2]int{1, 2}, [3]string{"a", "b", "c"}, []any{1, "x", nil}, []any{int64(1), int64(2)}, []any{"a", "b"}, []any{},
		[]*string{pointerTo("a"), nil}, []*int{nil, pointerTo(2)}, []uuid.UUID{id, {}}, []pgtype.Text{{String: "a", Valid: true}, {}}, []sql.NullString{},
		[][]int{{1, 2}, {3, 4}}, [][]string{{"a"}, {"b"}}, [][]int64{},
		[]json.RawMessage{json.RawMessage(`{"a": 1}`), nil},
		pgtype.Int4{Int32: 4, Valid: true}, pgtype.Int8{}, pgtype.Text{String: "t", Valid: true}, pgtype.Bool{Bool: true, Valid: true}, pgtype.Float4{Float32: 0.1, Valid: true},
		pgtype.Numeric{Int: big.NewInt(12345), Exp: -2, Valid: true}, pgtype.Numeric{NaN: true, Valid: true}, pgtype.Numeric{InfinityModifier: pgtype.Infinity, Valid: true},
		pgtype.Date{Time: at, Valid: true}, pgtype.Date{InfinityModifier: pgtype.Infinity, Valid: true}, pgtype.Timestamp{Time: time.Date(2024, 5, 1, 10, 0, 0, 5000, time.UTC), Valid: true},
		pgtype.Timestamptz{Time: at, Valid: true}, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, pgtype.Time{Microseconds: 3723000004, Valid: true},
		pgtype.Interval{Months: 14, Days: -3, Microseconds: 5000001, Valid: true}, pgtype.UUID{Bytes: id, Valid: true}, pgtype.Point{P: pgtype.Vec2{X: 1.5, Y: -2}, Valid: true},
		pgtype.Bits{Bytes: []byte{0b10100000}, Len: 3, Valid: true}, pgtype.Hstore{"a": nil}, pgtype.Uint32{Uint32: 5, Valid: true},
		pgtype.Range[pgtype.Int4]{Lower: pgtype.Int4{Int32: 1, Valid: true}, Upper: pgtype.Int4{Int32: 9, Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive, Valid: true},
		pgtype.Range[pgtype.Int4]{}, pgtype.Range[pgtype.Numeric]{LowerType: pgtype.Unbounded, UpperType: pgtype.Unbounded, Valid: true},
		pgtype.Range[pgtype.Timestamptz]{Lower: pgtype.Timestamptz{Time: at, Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Unbounded, Valid: true},
		&pgtype.Range[pgtype.Date]{Lower: pgtype.Date{Time: at, Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Unbounded, Valid: true},
		pgtype.Multirange[pgtype.Range[pgtype.Int4]]{{Lower: pgtype.Int4{Int32: 1, Valid: true}, Upper: pgtype.Int4{Int32: 9, Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive, Valid: true}},
		pgtype.FlatArray[int32]{1, 2}, pgtype.FlatArray[string]{"a"},
		[]sql.NullString{{String: `a"b,\`, Valid: true}, {}, {Valid: true}}, []sql.NullInt64{{Int64: 5, Valid: true}, {}}, []sql.NullTime{{Time: at, Valid: true}, {}}, []sql.Null[float64]{{V: 0.1, Valid: true}},
		[]*sql.NullString{{String: "a", Valid: true}, nil}, [2]sql.NullBool{{Bool: true, Valid: true}}, []any{sql.NullInt32{Int32: 1, Valid: true}, nil}, []valuer{{"x"}, {nil}}, []valuer{{id}},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")}, []netip.Addr{}, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, []net.IP{net.ParseIP("10.0.0.1"), nil, net.ParseIP("::1")}, []net.IPNet{*cidr},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1")}, []*netip.Addr{pointerTo(netip.MustParseAddr("10.0.0.1")), nil}, [1]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		net.HardwareAddr{8, 0, 43, 1, 2, 3}, net.HardwareAddr{8, 0, 43, 1, 2, 3, 4, 5}, net.HardwareAddr(nil), []net.HardwareAddr{{8, 0, 43, 1, 2, 3}, nil}, pointerTo(net.HardwareAddr{1, 2, 3, 4, 5, 6}),
		[][16]byte{id, {}}, []myUUID{myUUID(id)}, []uuid.NullUUID{{UUID: id, Valid: true}, {}}, []pgtype.UUID{{Bytes: id, Valid: true}, {}}, [4]byte{1, 2, 3, 4},
		[]pgtype.Numeric{{Int: big.NewInt(12345), Exp: -2, Valid: true}, {}, {NaN: true, Valid: true}}, []pgtype.Numeric{}, []pgtype.Interval{{Months: 1, Days: -3, Microseconds: 4, Valid: true}, {}}, []pgtype.Time{{Microseconds: 3723000004, Valid: true}},
		[]pgtype.Date{{Time: at, Valid: true}, {}, {InfinityModifier: pgtype.Infinity, Valid: true}}, []pgtype.Timestamp{{Time: at, Valid: true}, {}}, []pgtype.Timestamptz{{Time: at, Valid: true}, {}, {InfinityModifier: pgtype.Infinity, Valid: true}},
		[]pgtype.Int4{{Int32: 4, Valid: true}, {}}, []pgtype.Float8{{Float64: 0.1, Valid: true}}, []pgtype.Bool{{Bool: true, Valid: true}},
		[]time.Time{at, {}, time.Date(2024, 1, 1, 23, 30, 0, 7, time.FixedZone("", -5*3600-30))},
		pgtype.Array[int32]{Elements: []int32{1, 2, 3, 4}, Dims: []pgtype.ArrayDimension{{Length: 2, LowerBound: -1}, {Length: 2, LowerBound: 3}}, Valid: true},
		pgtype.Array[int32]{}, pgtype.Array[int32]{Valid: true}, pgtype.Array[int32]{Dims: []pgtype.ArrayDimension{}, Valid: true}, &pgtype.Array[int64]{Elements: []int64{5}, Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 1}}, Valid: true},
		pgtype.Array[pgtype.Text]{Elements: []pgtype.Text{{String: "a,\"", Valid: true}, {}}, Dims: []pgtype.ArrayDimension{{Length: 2, LowerBound: 1}}, Valid: true},
		pgtype.Array[float64]{Elements: []float64{math.NaN(), 0.1}, Dims: []pgtype.ArrayDimension{{Length: 2, LowerBound: 1}}, Valid: true},
		pgtype.Array[*string]{Elements: []*string{pointerTo("x"), nil}, Dims: []pgtype.ArrayDimension{{Length: 2, LowerBound: 1}}, Valid: true},
		pgtype.Array[pgtype.Numeric]{Elements: []pgtype.Numeric{{Int: big.NewInt(5), Exp: 3, Valid: true}}, Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 0}}, Valid: true},
		pgtype.Array[time.Time]{Elements: []time.Time{at}, Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 1}}, Valid: true}, pgtype.Array[uuid.UUID]{Elements: []uuid.UUID{id}, Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 1}}, Valid: true},
		pgtype.Range[int32]{Lower: 1, Upper: 9, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive, Valid: true}, pgtype.Range[int]{Upper: 3, LowerType: pgtype.Exclusive, UpperType: pgtype.Inclusive, Valid: true}, pgtype.Range[int]{},
		pgtype.Range[time.Time]{Lower: at, LowerType: pgtype.Inclusive, UpperType: pgtype.Unbounded, Valid: true}, pgtype.Range[float64]{Lower: 0.1, Upper: 0.3, LowerType: pgtype.Inclusive, UpperType: pgtype.Inclusive, Valid: true},
		pgtype.Range[int64]{LowerType: pgtype.Empty, UpperType: pgtype.Empty, Valid: true}, pgtype.Multirange[pgtype.Range[int32]]{{Lower: 1, Upper: 9, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive, Valid: true}}, pgtype.Multirange[pgtype.Range[int32]]{},
		pgtype.Multirange[pgtype.Range[pgtype.Int4]](nil),
	}
}

func TestAcceptedValuesComeBackFromTheLog(t *testing.T) {
	t.Parallel()
	for _, v := range acceptedValues() {
		if _, err := dialecttest.Replayed(postgresDialect, v); err != nil {
			t.Errorf("%T(%v): %v", v, v, err)
		}
	}
}

func TestAmbiguousValuesAreRefused(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse("http://h")
	for _, v := range []any{
		color(1), []color{1}, withJSON(7), stringer{1}, &stringer{1}, u, asInt{1}, []asInt{{1}}, pointerTo(color(1)),
		big.NewRat(1, 2), make(chan int), func() {}, complex(1, 2), map[string]any{"c": make(chan int)}, circularValue{},
		pgx.QueryResultFormats{1}, pgx.QueryResultFormatsByOID{1: 1}, pgx.NamedArgs{"x": color(1)},
		pgtype.Array[color]{Elements: []color{1}, Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 1}}, Valid: true},
		pgtype.Array[int32]{Dims: []pgtype.ArrayDimension{{Length: 1, LowerBound: 1}}, Valid: true},
		pgtype.Array[int32]{Dims: []pgtype.ArrayDimension{{Length: math.MaxInt32}, {Length: math.MaxInt32}, {Length: math.MaxInt32}}, Valid: true},
		pgtype.Range[string]{}, pgtype.Range[color]{}, pgtype.Multirange[pgtype.Range[uint8]]{}, [][][]int{{{1}}}, [][]myInt{{1}, {2}}, [2][2]int32{{1, 2}, {3, 4}},
	} {
		kept, err := postgresDialect.Storable(v)
		if err == nil {
			t.Errorf("%T is kept as %T", v, kept)
			continue
		}
		if name := strings.TrimPrefix(reflect.TypeOf(v).String(), "*"); !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), "color") {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}

func TestNamedArgumentsAndModesWork(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t).Open(t)
	must(t, db, "CREATE TABLE t (id int, v jsonb)")
	for i, args := range [][]any{
		{pgx.NamedArgs{"id": myInt(1), "v": structJSON{"x", 2}}},
		{pgx.StrictNamedArgs{"id": pointerTo(1), "v": `{"name": "x", "n": 2}`}},
		{pgx.QueryExecModeExec, pgx.NamedArgs{"id": 1, "v": json.RawMessage(`{"n": 2, "name": "x"}`)}},
	} {
		back := make([]any, len(args))
		for i := range args {
			var err error
			if back[i], err = dialecttest.Replayed(postgresDialect, args[i]); err != nil {
				t.Fatal(err)
			}
			if reflect.TypeOf(back[i]) != reflect.TypeOf(args[i]) {
				t.Errorf("%T came back as %T", args[i], back[i])
			}
		}
		if _, err := db.Exec("INSERT INTO t VALUES (@id, @v)", args...); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if _, err := db.Exec("INSERT INTO t VALUES (@id, @v)", back...); err != nil {
			t.Errorf("%d from the log: %v", i, err)
		}
	}
	var rows, kinds int
	if err := db.QueryRow("SELECT count(*), count(DISTINCT (id, v)) FROM t").Scan(&rows, &kinds); err != nil || rows != 6 || kinds != 1 {
		t.Errorf("%d rows of %d kinds, %v", rows, kinds, err)
	}
}

func TestUndialledConnectionTakesWhatPgxTakes(t *testing.T) {
	t.Parallel()
	v := structJSON{"x", 1}
	nv := driver.NamedValue{Ordinal: 1, Value: v}
	if err := postgresDialect.CheckNamedValue(&nv); err != nil || nv.Value != v {
		t.Errorf("%v became %v, %v", v, nv.Value, err)
	}
}

func TestHooksDecideWhetherAStructIsKept(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig("postgres://u@127.0.0.1:1/d")
	if err != nil {
		t.Fatal(err)
	}
	hook := func(context.Context, *pgx.Conn) error { return nil }
	pool := func(after func(context.Context, *pgx.Conn) error) driver.Connector {
		cfg, err := pgxpool.ParseConfig("postgres://u@127.0.0.1:1/d")
		if err != nil {
			t.Fatal(err)
		}
		cfg.AfterConnect = after
		p, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return stdlib.GetPoolConnector(p)
	}
	registered, err := Target(stdlib.RegisterConnConfig(cfg) + " bedDataSource=d")
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		dialect *dialect.Dialect
		kept    bool
	}{
		"no hook":                    {TargetOf(cfg, "d").Dialect, true},
		"a hook for passwords":       {TargetOf(cfg, "d", stdlib.OptionBeforeConnect(func(context.Context, *pgx.ConnConfig) error { return nil })).Dialect, true},
		"AfterConnect":               {TargetOf(cfg, "d", stdlib.OptionAfterConnect(hook)).Dialect, false},
		"a registered configuration": {registered.Dialect, true},
		"a connector":                {dialectOf(stdlib.GetConnector(*cfg)), true},
		"a pool":                     {dialectOf(pool(nil)), true},
		"a pool with AfterConnect":   {dialectOf(pool(hook)), false},
		"an unknown connector":       {dialectOf(struct{ driver.Connector }{}), false},
	} {
		if _, err := c.dialect.Storable(structJSON{"x", 1}); (err == nil) != c.kept {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := c.dialect.Storable(json.RawMessage(`{}`)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
