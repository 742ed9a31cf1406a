package cli

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/internal/ops"
)

// askLogs lets metrics ask operators' stores for the states of the named logs. A store is nil until
// its log is open.
func askLogs(names []string, stores []*atomic.Pointer[ops.Store]) logmetrics.AskFunc {
	return func(ctx context.Context) []logmetrics.Log {
		logs := make([]logmetrics.Log, len(stores))
		var asking sync.WaitGroup
		for i, store := range stores {
			asking.Go(func() {
				logs[i].Name = names[i]
				if s := store.Load(); s != nil {
					logs[i].Overview, _ = s.Overview(ctx, ops.OverviewOptions{})
				}
			})
		}
		asking.Wait()
		return logs
	}
}

// logName is the label of a log: its name in a list, otherwise host and database of its DSN. It is
// the same in every process on that log.
func logName(l dataSource, several bool) string {
	if !several {
		if t, err := drivers[l.driver](l.dsn, nil); err == nil {
			return t.DataSource
		}
	}
	return l.name
}
