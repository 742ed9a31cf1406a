package asyncjob

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/bedsql/bed/txlog"
)

// untilAnOperatorActs begins the last error of a unit that no attempt can deliver at
// present.
const untilAnOperatorActs = "cannot be delivered until an operator acts: "

// concerns holds the reported causes for an operator, by name and cause. It keeps each from
// being reported twice.
type concerns struct{ told sync.Map }

// raise reports whether the cause is new.
func (c *concerns) raise(name, cause string) bool {
	_, told := c.told.LoadOrStore([2]string{name, cause}, true)
	return !told
}

// settled forgets the reports about a data source, and reports whether there were any.
func (c *concerns) settled(name string) (was bool) {
	c.told.Range(func(concern, _ any) bool {
		if concern.([2]string)[0] == name {
			c.told.Delete(concern)
			was = true
		}
		return true
	})
	return was
}

// standing finds a resting unit from an earlier round that waits for an operator. Without
// it, a round without claims would look healthy.
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
