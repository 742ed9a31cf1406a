package asyncjob

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/bedsql/bed/txlog"
)

// untilAnOperatorActs begins the last error of what no attempt can deliver as
// things are.
const untilAnOperatorActs = "cannot be delivered until an operator acts: "

// concerns are the causes reported for each data source that only an operator can
// fix, so that each is reported once.
type concerns struct {
	mu   sync.Mutex
	told map[string]map[string]bool
}

// raise reports whether the cause is new.
func (c *concerns) raise(name, cause string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[name][cause] {
		return false
	}
	if c.told == nil {
		c.told = map[string]map[string]bool{}
	}
	if c.told[name] == nil {
		c.told[name] = map[string]bool{}
	}
	c.told[name][cause] = true
	return true
}

// settled forgets what was reported of a data source, and reports whether there
// was anything.
func (c *concerns) settled(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, was := c.told[name]
	delete(c.told, name)
	return was
}

// standing finds what an earlier round left for an operator and that rests
// now: a round that claims nothing must not look as if all was well.
func (d *drain) standing() {
	ctx, cancel := context.WithTimeout(d.ctx, d.job.cfg.Lease)
	defer cancel()
	units, err := d.job.storage.List(ctx, txlog.Filter{DataSource: d.name, Limit: 100})
	if err != nil {
		return // the report is of this round; whether the log can be read was shown by the claim
	}
	for _, u := range units {
		if why, ok := strings.CutPrefix(u.LastError, untilAnOperatorActs); ok && !u.Parked {
			d.note(func(r *DataSourceReport) { r.Blocked = errors.New(why) })
			return
		}
	}
}
