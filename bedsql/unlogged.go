package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
)

// writeUnlogged hands a write straight to the driver.
func (c *Conn) writeUnlogged(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (attempt.Reply, error) {
	if scopeOf(ctx).key != nil && !scopeOf(ctx).skip {
		return attempt.Reply{}, unusable("the write would run unlogged")
	}
	why := c.whyUnlogged(ctx, s)
	if why != "" {
		if err := c.refuseUnlogged(why); err != nil {
			return attempt.Reply{}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return attempt.Reply{}, err
	}
	reply, err := c.bare(ctx, s, args, rows)
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, driver.ErrBadConn) {
		return reply, err // what the driver did not take, database/sql brings again
	}
	if why != "" {
		c.ranUnlogged(s, why)
	} else {
		c.c.cfg.Counters.Skipped.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pinBy(s) // @v := …
	}
	return reply, err
}

// whyUnlogged says why a write runs unlogged; empty when it was asked for by Skip.
func (c *Conn) whyUnlogged(ctx context.Context, s statement) string {
	switch {
	case scopeOf(ctx).skip:
		return ""
	case c.pinned != "":
		return c.pinned
	case s.class.Pins || s.class.NeedsSession:
		return "the statement depends on its session"
	default: // in a transaction that was begun under Skip
		return ""
	}
}

// refuseUnlogged is the error of a write that could only run unlogged, if the
// configuration wants one.
func (c *Conn) refuseUnlogged(why string) error {
	if c.c.cfg.Pinned != PinnedRefuse {
		return nil
	}
	return fmt.Errorf("%w: %s; use a connection of its own for it, or bedsql.Skip", ErrPinned, why)
}

// ranUnlogged counts a write that ran unlogged, and warns of the first on this
// connection.
func (c *Conn) ranUnlogged(s statement, why string) {
	c.c.cfg.Counters.PassedThrough.Add(1)
	if c.warned {
		return
	}
	c.warned = true
	flavor := sqltext.Flavor(c.c.dialect.Flavor)
	fields := logrus.Fields{"reason": why, "statement": shown(flavor, s.query), "advice": unloggedAdvice}
	if c.pinnedBy != "" {
		fields["pinned_by"] = shown(flavor, c.pinnedBy)
	}
	c.c.log.WithFields(fields).Warn("bed: writes on this connection run unlogged and unretried")
}

// unloggedAdvice is the way out of writes that run unlogged.
const unloggedAdvice = "put settings into the DSN, send one statement at a time, give session work a connection of its own " +
	"(sql.DB.Conn) that is closed behind it; bedsql.Skip where it is meant; Config.Pinned: bedsql.PinnedRefuse makes it an error"
