package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
)

func TestStagedWriteSendsTheLoggedValues(t *testing.T) {
	t.Parallel()
	bytes := []byte("bytes")
	for name, args := range map[string][]any{
		"none":                 nil,
		"values of no change":  {int64(7), 1.5, math.MaxFloat64, true, "text", "\xff\x00", "", nil},
		"bytes":                {bytes, "text"},
		"a time":               {time.Date(2026, 5, 1, 10, 0, 0, 123456789, time.FixedZone("", 7200))},
		"a time of this clock": {time.Now()},
		"a name":               {sql.Named("a", int64(1)), sql.Named("b", "text")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeDriver{}
			s := newSet(t, f)
			stored := make([]driver.NamedValue, len(args))
			for i, v := range args {
				stored[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
				if n, ok := v.(sql.NamedArg); ok {
					stored[i].Name, stored[i].Value = n.Name, n.Value
				}
			}
			params, err := entry.EncodeParams(stored)
			if err != nil {
				t.Fatal(err)
			}
			want, err := entry.DecodeParams(params)
			if err != nil {
				t.Fatal(err)
			}
			ctx, soft, err := bedsql.Begin(context.Background(), bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			mustExec(t, s.pool, ctx, "UPDATE t SET n = 1", args...)
			if name == "bytes" {
				copy(bytes, "XXXXX") // they are the caller's again
			}
			if err := soft.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.args) == 0 {
				t.Fatal("nothing reached the driver")
			}
			if got := f.args[len(f.args)-1]; len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("the driver got %v, the log holds %v", got, want)
			}
		})
	}
}
