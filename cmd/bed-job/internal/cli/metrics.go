package cli

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener/bedprom"
)

var errNotOpen = errors.New("the log is not open")

// askLogs has metrics ask operators' stores for the state of the logs. A store is nil while
// its log is not open.
func askLogs(stores []*atomic.Pointer[ops.Store]) bedprom.AskFunc {
	return func(ctx context.Context) (bedprom.Log, error) {
		sum := bedprom.Log{}
		at := map[string]int{}
		for _, store := range stores {
			l, err := askLog(ctx, store.Load())
			if err != nil {
				return bedprom.Log{}, err
			}
			if l.Jobs < 0 || sum.Jobs < 0 {
				sum.Jobs = -1
			} else {
				sum.Jobs += l.Jobs
			}
			for _, d := range l.DataSources {
				i, known := at[d.Name]
				if !known {
					at[d.Name] = len(sum.DataSources)
					sum.DataSources = append(sum.DataSources, d)
					continue
				}
				sum.DataSources[i] = both(sum.DataSources[i], d)
			}
		}
		return sum, nil
	}
}

// both merges two logs' views of a data source: it is reachable if all jobs reach
// it, paused if any job leaves it alone.
func both(a, b bedprom.DataSource) bedprom.DataSource {
	a.Waiting, a.Leased, a.Parked = a.Waiting+b.Waiting, a.Leased+b.Leased, a.Parked+b.Parked
	a.Oldest, a.OldestParked = max(a.Oldest, b.Oldest), max(a.OldestParked, b.OldestParked)
	if a.Reachable == nil || b.Reachable != nil && !*b.Reachable {
		a.Reachable = b.Reachable
	}
	a.Paused = a.Paused || b.Paused
	return a
}

// askLog is the state of one log.
func askLog(ctx context.Context, s *ops.Store) (bedprom.Log, error) {
	if s == nil {
		return bedprom.Log{}, errNotOpen
	}
	o, err := s.Overview(ctx, ops.OverviewOptions{})
	if err != nil {
		return bedprom.Log{}, err
	}
	l := bedprom.Log{Jobs: len(o.Jobs)}
	if len(o.Off) > 0 && len(o.Jobs) == 0 {
		l.Jobs = -1 // nobody can tell
	}
	age := func(t *time.Time) time.Duration {
		if t == nil {
			return 0
		}
		return max(o.At.Sub(*t), time.Millisecond)
	}
	for _, d := range o.DataSources {
		l.DataSources = append(l.DataSources, bedprom.DataSource{
			Name: d.Name, Waiting: d.Waiting, Leased: d.Leased, Parked: d.Parked,
			Oldest: age(d.Oldest), OldestParked: age(d.OldestParked), Reachable: d.Reachable, Paused: d.Paused,
		})
	}
	return l, nil
}
