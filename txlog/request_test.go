package txlog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Buffers of a write to the log are reused: a caller that leaves during its write must not find its
// units in another's.
func TestLeavingCallerTakesNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s := open(t, db, txlog.WithGrace(0))
		var group sync.WaitGroup
		for caller := range 24 {
			group.Go(func() {
				for n := range 25 {
					text := fmt.Sprintf("UPDATE a SET caller = %d, n = %d", caller, n)
					u := unit([]string{text, text, text}[:1+n%3]...)
					ctx, cancel := context.WithCancel(t.Context())
					if caller%3 == 0 {
						go cancel()
					}
					err := s.Add(ctx, time.Hour, u)
					cancel()
					if caller%3 == 0 && err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("the caller who left got %v", err)
						}
						continue
					}
					if err != nil {
						t.Errorf("caller %d: %v", caller, err)
						return
					}
					got, err := s.Get(t.Context(), u.ID)
					if err != nil || got.Unreadable != nil || len(got.Statements) != len(u.Statements) || got.Statements[len(u.Statements)-1].SQL != text {
						t.Errorf("%q came back as %+v, %v", text, got, err)
					}
					if err := s.Remove(t.Context(), u); err != nil {
						t.Errorf("caller %d: %v", caller, err)
					}
				}
			})
		}
		group.Wait()
	})
}
