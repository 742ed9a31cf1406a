package console

import (
	"net/http"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

const (
	// countedFor is the lifetime of a count, countedIDs the limit of entries in all counts
	// together. The oldest are forgotten first.
	countedFor = time.Hour
	countedIDs = 500_000
)

// counted remembers the selections counted for bulk actions, by their cut-off.
type counted struct {
	mu  sync.Mutex
	all []selection // oldest first
}

type selection struct {
	*ops.Selection
	until string
	at    time.Time
}

// keep remembers a selection and returns its cut-off, the key for find: the log's time of counting.
func (c *counted) keep(s *ops.Selection) (until string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := s.At
	for until = at.Format(time.RFC3339Nano); c.of(until) != nil; until = at.Format(time.RFC3339Nano) {
		at = at.Add(time.Microsecond)
	}
	c.all = append(c.all, selection{s, until, time.Now()})
	n := 0
	for _, one := range c.all {
		n += len(one.IDs)
	}
	for len(c.all) > 1 && (n > countedIDs || time.Since(c.all[0].at) > countedFor) {
		n -= len(c.all[0].IDs)
		c.all = c.all[1:]
	}
	return until
}

func (c *counted) of(until string) *ops.Selection {
	for _, one := range c.all {
		if one.until == until {
			return one.Selection
		}
	}
	return nil
}

// find returns the selection counted for a filter at until.
func (c *counted) find(until string, f ops.Filter) (*ops.Selection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.of(until); s != nil && s.Filter == f {
		return s, nil
	}
	return nil, &failure{status: http.StatusConflict, text: "Nothing was changed: this console does not know what was counted then. Count again."}
}
