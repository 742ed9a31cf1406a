package cli

import (
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener/bedprom"
)

var errNotOpen = errors.New("the log is not open")

// askLog has metrics ask an operator's store for the state of the log. store gives nil while
// the log is not open.
func askLog(store func() *ops.Store) bedprom.AskFunc {
	return func(ctx context.Context) (bedprom.Log, error) {
		s := store()
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
}
