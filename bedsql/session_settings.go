package bedsql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener/delivery"
)

// This file reads the settings of Config.SessionSettings. Without such settings, no write enters it.

// nameSettings checks the settings of Config.SessionSettings, and writes their names as the server
// compares them. Without any, it warns of hooks that may set some.
func nameSettings(t *delivery.Target, cfg *Config, log logrus.FieldLogger) error {
	if cfg.SessionSettings == nil && t.Dialect.Hooked {
		log.Warn("bed: hooks of the driver may change the sessions of this data source, and no entry keeps these changes: " +
			"name the settings in Config.SessionSettings, or give an empty list if there are none")
	}
	names := make([]string, len(cfg.SessionSettings))
	for i, name := range cfg.SessionSettings {
		names[i] = strings.ToLower(name)
		why := fmt.Errorf("the dialect %q has no settings that belong to an entry", t.Dialect.Name)
		if t.Dialect.Nameable != nil {
			why = t.Dialect.Nameable(names[i], t.ReceiptSchema)
		}
		if why != nil {
			return fmt.Errorf("bed: Config.SessionSettings of %s cannot name %q: %w", t.DataSource, name, why)
		}
	}
	cfg.SessionSettings = names
	return nil
}

// readSettings brings the known session of the connection up to date before an entry keeps it.
func (c *Conn) readSettings(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, c.c.cfg.AttemptTimeout)
	defer cancel()
	used := c.inner != nil
	if c.dead && c.tx == nil {
		return driver.ErrBadConn
	}
	err := c.ready(bounded)
	if err == nil {
		var now, unset string
		if now, unset, err = c.c.dialect.Named(bounded, &c.session, c.session.Facts.Session, c.c.cfg.SessionSettings); unset != "" {
			err = attempt.Certain(fmt.Errorf("%s is not set on this connection", unset), dialect.Refused)
		}
		if err == nil {
			c.session.Facts.Session = now
			return nil
		}
	}
	failed := fmt.Errorf("its entry needs the session's %s (Config.SessionSettings): %w", strings.Join(c.c.cfg.SessionSettings, ", "), err)
	if c.c.dialect.Class(err).Answered() {
		return fmt.Errorf("bed: nothing was run: %w", failed)
	}
	if c.inner != nil {
		c.dead = true
	}
	if used && c.tx == nil && bounded.Err() == nil {
		return driver.ErrBadConn // nothing was logged yet: database/sql may use another connection
	}
	return &NotLoggedError{DataSource: c.c.target.DataSource, Cause: failed}
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
