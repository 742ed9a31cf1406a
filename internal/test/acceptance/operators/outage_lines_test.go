package operators

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestPendingWritesAreLoggedOnceThenSummedUp(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		const writes = 40
		var hook *logtest.Hook
		r := rig.New(t, db, rig.Collecting(&hook), func(c *bedsql.Config) { c.NoSyncRetry = true })
		r.Account(1)
		down := testproxy.New(t, rig.DeadAddr(t))
		pool := r.Open(db.Via(down.Addr()).DSN)
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
			t.Errorf("%d writes were reported in %d lines: %q", writes, len(lines), lines)
		}
		_ = pool.Close()
		if more, lines := told(); len(lines) != 2 || more != writes-1 {
			t.Errorf("when the database was closed %d more were reported, in these lines: %q", more, lines)
		}
	})
}

// keepsAll is a log without removals and renewals: an owner gives up when its first lease ends.
type keepsAll struct {
	txlog.Storage
	tried func()
}

func (l keepsAll) Remove(context.Context, ...*entry.Unit) error {
	l.tried()
	return errReadOnlyLog
}

func (keepsAll) Renew(context.Context, time.Duration, ...*entry.Unit) ([]*entry.Unit, error) {
	return nil, errReadOnlyLog
}

var errReadOnlyLog = errors.New("the log's database is read-only")

func TestSecondDeliveryIsAnnouncedOnlyAtLeastOnce(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		t.Run(map[bedsql.Guarantee]string{bedsql.AtLeastOnce: "at least once", bedsql.ExactlyOnce: "exactly once"}[guarantee], func(t *testing.T) {
			t.Parallel()
			var hook *logtest.Hook
			r := rig.New(t, testdb.SQLite(t), rig.Collecting(&hook), func(c *bedsql.Config) {
				c.Storage, c.Guarantee, c.Lease = keepsAll{c.Storage, func() {}}, guarantee, 5*time.Second
			})
			r.Account(1)
			if _, err := r.Wrapped.ExecContext(t.Context(), "UPDATE account SET balance = 2 WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			lines := func(what string) (found []string) {
				for _, line := range rig.Warnings(hook) {
					if strings.Contains(line, what) {
						found = append(found, line)
					}
				}
				return found
			}
			rig.Eventually(t, "the application gave the removal up", func() bool { return len(lines("the job will find it")) == 1 })
			tgt := rig.TargetOf(t, r.DB)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			job, err := asyncjob.New(keepsAll{r.Storage, cancel}, asyncjob.Targets{tgt.DataSource: tgt}, asyncjob.Config{
				MaxDeliveryTryDelay: asyncjob.NoDelay, Lease: time.Minute, ShutdownTimeout: 100 * time.Millisecond, Logger: r.Cfg.Logger,
			})
			if err != nil {
				t.Fatal(err)
			}
			// It would repeat the removal for as long as it may.
			rig.Eventually(t, "the job has tried to remove the entry", func() bool {
				_, _ = job.RunOnce(ctx)
				return ctx.Err() != nil
			})
			_ = job.Close()
			byJob := lines("not all of these entries could be removed")
			if len(byJob) != 1 {
				t.Errorf("the warnings are %q", rig.Warnings(hook))
			}
			for _, line := range append(byJob, lines("the job will find it")...) {
				if again := strings.Contains(line, "again"); again != (guarantee == bedsql.AtLeastOnce) {
					t.Error(line)
				}
			}
		})
	}
}
