package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/sqltext"
)

// passThrough hands a write straight to the driver, unlogged.
func (c *Conn) passThrough(ctx context.Context, under scope, s statement) (attempt.Reply, error) {
	why := "" // Unlogged asked for it, here or where the transaction was begun
	switch {
	case under.unlogged:
	case under.key != nil:
		return attempt.Reply{}, unusable("the write would run unlogged")
	case under.ordered:
		return attempt.Reply{}, disordered("the write would run unlogged")
	case c.pinned != "":
		why = c.pinned
	case s.class.Pins || s.class.NeedsSession:
		why = "the statement depends on its session"
	}
	if why != "" {
		if err := c.refuseUnlogged(why); err != nil {
			return attempt.Reply{}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return attempt.Reply{}, err
	}
	if err := ctx.Err(); err != nil {
		return attempt.Reply{}, err
	}
	reply, err := c.sendUnlogged(ctx, s)
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, driver.ErrBadConn) {
		return reply, err // what the driver did not take comes again from database/sql
	}
	if why != "" {
		c.ranUnlogged(s, why)
	} else {
		c.c.cfg.Counters.Unlogged.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pinBy(s) // @v := …
	}
	return reply, err
}

// sendUnlogged hands s to the driver as database/sql would, but with a row requirement in a local
// transaction of its own.
func (c *Conn) sendUnlogged(ctx context.Context, s statement) (r attempt.Reply, err error) {
	switch d := c.c.dialect; {
	case !s.Required.Given():
		if r, err = c.sendOnce(ctx, s); c.tx == nil && !errors.Is(err, driver.ErrSkip) && !errors.Is(err, driver.ErrBadConn) {
			err = c.c.leftOpen(err)
		}
		if err != nil && c.tx != nil && len(c.tx.homes) > 0 {
			c.failedInTx(ctx, err, false) // its COMMIT must not write the entries alone
		}
		return r, err
	case c.tx != nil:
		r, _, err = c.tx.require(ctx, s)
		return r, err
	case c.dead:
		return r, driver.ErrBadConn // a BEGIN could commit what is still open
	case c.pinned != "" && d.Flavor != sqltext.SQLite && (d.Idle == nil || !d.Idle(c.inner)):
		return r, fmt.Errorf("bed: the write was not sent: its rows can be checked only in a local transaction (RequireRows, AtLeastRows), which cannot be begun safely here (%s); "+
			"begin one by BeginTx, or use another connection", c.pinned)
	}
	if err := s.prepareLate(ctx); err != nil {
		return r, err
	}
	out := c.onOwn(func() attempt.Outcome {
		return attempt.One(ctx, c.c.dialect, &c.session, s.Call, s.rows, false)
	})
	if out.Rows != nil {
		r.Rows = out.Rows
	}
	r.Result = out.Result
	return r, besteffort.LeftOpen(c.c.target.DataSource, out, nil)
}

// refuseUnlogged returns an error for an unlogged write if the configuration refuses such writes.
func (c *Conn) refuseUnlogged(why string) error {
	if c.c.cfg.Pinned != PinnedRefuse {
		return nil
	}
	return fmt.Errorf("%w: %s; use a connection of its own for it, or bedsql.Unlogged", ErrPinned, why)
}

// ranUnlogged counts an unlogged write, and warns of the first on this connection.
func (c *Conn) ranUnlogged(s statement, why string) {
	c.c.cfg.Counters.PassedThrough.Add(1)
	if c.warned {
		return
	}
	c.warned = true
	flavor := c.c.dialect.Flavor
	fields := logrus.Fields{"reason": why, "statement": shown(flavor, s.SQL), "advice": unloggedAdvice}
	if c.pinnedBy != "" {
		fields["pinned_by"] = shown(flavor, c.pinnedBy)
	}
	c.c.log.WithFields(fields).Warn("bed: writes on this connection run unlogged and unretried")
}

// unloggedAdvice explains how to avoid unlogged writes.
const unloggedAdvice = "put settings into the DSN, send one statement at a time, give session work a connection of its own " +
	"(sql.DB.Conn) that is closed after it; bedsql.Unlogged where it is meant; Config.Pinned: bedsql.PinnedRefuse makes it an error"
