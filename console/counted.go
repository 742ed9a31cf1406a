package console

import (
	"net/http"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

const (
	// countedFor is how long what was counted is remembered, and countedIDs how many
	// entries of all counts together; the oldest are forgotten first.
	countedFor = time.Hour
	countedIDs = 500_000
)

// counted remembers what was counted for a bulk action, by its cut-off.
type counted struct {
	mu  sync.Mutex
	all []selection // oldest first
}

type selection struct {
	*ops.Selection
	until string
	at    time.Time
}

// keep remembers a selection and gives the cut-off under which find finds it: the
// log's clock when it was counted.
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

// find gives what was counted for a filter at until.
func (c *counted) find(until string, f ops.Filter) (*ops.Selection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.of(until); s != nil && s.Filter == f {
		return s, nil
	}
	return nil, &failure{status: http.StatusConflict, text: "Nothing was changed: this console does not know what was counted then. Count again."}
}
