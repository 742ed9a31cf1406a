package asyncjob

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dialect"
)

func TestEqualFailuresAreAFewLogLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		class dialect.Class
		level logrus.Level
		what  string
		waits bool
	}{
		{dialect.Retryable, logrus.WarnLevel, "not delivered", true},
		{dialect.Refused, logrus.ErrorLevel, "parked: an operator must retry or discard it", false},
	} {
		t.Run(c.class.String(), func(t *testing.T) {
			t.Parallel()
			const n = 600
			store := newStore(t)
			var met atomic.Int64
			db := &fakeDB{onExec: func(context.Context, string) error {
				return answer{c.class, fmt.Sprintf("fake: process %d waited for a lock", met.Add(1))}
			}}
			addMany(t, store, "orders", n)
			cfg, hook := logged()
			cfg.MaxDeliveryTryTimes = 5
			r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
			lines, told := 0, 0
			for _, e := range hook.AllEntries() {
				if e.Level == logrus.DebugLevel || e.Message != c.what {
					continue
				}
				lines++
				more, _ := e.Data["more"].(int)
				if told += max(more, 1); e.Level != c.level || e.Data["error"] == nil || e.Data["data_source"] != "orders" {
					t.Errorf("got %v", e.Data)
				}
				if _, waits := e.Data["next_try_in"]; waits != (c.waits && more == 0) {
					t.Errorf("the delay is no field of %v", e.Data)
				}
			}
			if failed := r.Failed + r.Parked; lines != 2 || told != failed || failed < 100 { // a kind that fails is met less often
				t.Errorf("%d lines tell of %d failures, the report of %d", lines, told, failed)
			}
		})
	}
}
