package acceptance

import (
	"context"
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestPendingWritesAreToldOnceAndThenSummedUp(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		const writes = 40
		var hook *logtest.Hook
		r := newRig(t, db, collecting(&hook), func(c *bedsql.Config) { c.NoSyncRetry = true })
		r.account(1)
		down := testproxy.New(t, deadAddr(t))
		pool := r.open(db.Via(down.Addr()).DSN)
		for range writes {
			if _, err := pool.ExecContext(context.Background(), "UPDATE account SET balance = 2 WHERE id = 1"); !errors.Is(err, bedsql.ErrPending) {
				t.Fatal(err)
			}
		}
		told := func() (more int, lines []string) {
			for _, e := range hook.AllEntries() {
				if e.Level > logrus.WarnLevel {
					continue
				}
				lines = append(lines, e.Message)
				if n, ok := e.Data["more"].(int); ok {
					more += n
				}
			}
			return more, lines
		}
		if _, lines := told(); len(lines) != 1 {
			t.Errorf("%d writes were told of in %d lines: %q", writes, len(lines), lines)
		}
		_ = pool.Close()
		if more, lines := told(); len(lines) != 2 || more != writes-1 {
			t.Errorf("when the database was closed %d more were told of, in these lines: %q", more, lines)
		}
	})
}
