package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
)

// This file reads the settings of Config.SessionSettings. Without such settings, no write enters it.

// nameSettings checks the settings of Config.SessionSettings, and writes their names as the server
// compares them. Without any, it warns of hooks that may set some.
func (c *connector) nameSettings() error {
	if c.cfg.SessionSettings == nil && c.dialect.Hooked {
		c.log.Warn("bed: hooks of the driver may change the sessions of this data source, and no entry keeps these changes: " +
			"name the settings in Config.SessionSettings, or give an empty list if there are none")
	}
	names := make([]string, len(c.cfg.SessionSettings))
	for i, name := range c.cfg.SessionSettings {
		names[i] = strings.ToLower(name)
		why := fmt.Errorf("the dialect %q has no settings that belong to an entry", c.dialect.Name)
		if c.dialect.Nameable != nil {
			why = c.dialect.Nameable(names[i], c.target.ReceiptSchema)
		}
		if why != nil {
			return fmt.Errorf("bed: Config.SessionSettings of %s cannot name %q: %w", c.target.DataSource, name, why)
		}
	}
	c.cfg.SessionSettings = names
	return nil
}

// roams reports whether settings decide where unqualified names lead.
func roams(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.EqualFold(name, "search_path") || strings.EqualFold(name, "role")
	})
}

// readSettings brings the known session of the connection up to date before an entry keeps it.
func (c *Conn) readSettings(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, c.c.cfg.AttemptTimeout)
	defer cancel()
	used := c.inner != nil
	err := c.ready(bounded)
	if c.dead && c.tx == nil {
		return driver.ErrBadConn
	}
	if err == nil {
		var now, unset string
		now, unset, err = c.c.dialect.Named(bounded, &c.session, c.session.Facts.Session, c.c.cfg.SessionSettings)
		switch {
		case err != nil && !c.c.dialect.Class(err).Answered():
			if c.kill(); used && c.tx == nil && bounded.Err() == nil {
				return driver.ErrBadConn // nothing was logged yet: database/sql may use another connection
			}
		case unset != "":
			err = fmt.Errorf("%s is not set on this connection", unset)
		case err == nil:
			c.session.Facts.Session = now
			return nil
		}
	}
	if errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return fmt.Errorf("bed: nothing was run: an entry for %s needs the session's %s (Config.SessionSettings): %w",
		c.c.target.DataSource, strings.Join(c.c.cfg.SessionSettings, ", "), err)
}

// fresh has f run on a connection of the pool whose session is read again, because hooks may have
// changed it.
func (c *connector) fresh(ctx context.Context, f func(driver.Conn) attempt.Outcome) func(driver.Conn) attempt.Outcome {
	return func(conn driver.Conn) attempt.Outcome {
		s, _ := conn.(*attempt.Session)
		now, _, err := c.dialect.Named(ctx, s, s.Facts.Session, c.cfg.SessionSettings)
		if err != nil {
			return attempt.Failed(c.dialect, err, true)
		}
		s.Facts.Session = now
		return f(conn)
	}
}
