package cli

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/internal/ops"
)

var errNotOpen = errors.New("the log is not open")

// askLogs lets metrics ask operators' stores for the states of the named logs. A store is nil until
// its log is open.
func askLogs(names []string, stores []*atomic.Pointer[ops.Store]) logmetrics.AskFunc {
	return func(ctx context.Context) []logmetrics.Log {
		logs := make([]logmetrics.Log, len(stores))
		var asking sync.WaitGroup
		for i, store := range stores {
			asking.Go(func() {
				logs[i], logs[i].Err = askLog(ctx, store.Load())
				logs[i].Name = names[i]
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

// askLog is the state of one log.
func askLog(ctx context.Context, s *ops.Store) (logmetrics.Log, error) {
	if s == nil {
		return logmetrics.Log{}, errNotOpen
	}
	o, err := s.Overview(ctx, ops.OverviewOptions{})
	if err != nil {
		return logmetrics.Log{}, err
	}
	l := logmetrics.Log{Jobs: len(o.Jobs)}
	if len(o.Off) > 0 && len(o.Jobs) == 0 {
		l.Jobs = -1 // nobody knows
	}
	age := func(t *time.Time) time.Duration {
		if t == nil {
			return 0
		}
		return max(o.At.Sub(*t), time.Millisecond)
	}
	for _, d := range o.DataSources {
		l.DataSources = append(l.DataSources, logmetrics.DataSource{
			Name: d.Name, Waiting: d.Waiting, Leased: d.Leased, Parked: d.Parked,
			Oldest: age(d.Oldest), OldestParked: age(d.OldestParked), Reachable: d.Reachable, Paused: d.Paused,
		})
	}
	return l, nil
}
