package bedsql

import (
	"context"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/sqltext"
)

// pins holds the reason for a connection's writes to run unlogged: its session has state that
// another one would not see.
type pins struct {
	// pinned is the reason; empty if writes are logged.
	pinned string
	// pinnedBy is the statement that left the state behind; it may be empty.
	pinnedBy string
	// warned means that the one warning about it was given.
	warned bool
}

// controlledByText is the reason after a statement that begins or ends a transaction.
const controlledByText = "a statement began or ended a transaction, which only BeginTx, Commit and Rollback do with a log"

// sessionState is the reason after a statement of unknown effect.
const sessionState = "the session holds state that another connection would not see"

// pin makes writes on this connection run unlogged from now on. by is the statement that left
// state behind in the session; it is empty if a reset may not end that state.
func (c *Conn) pin(why, by string) {
	if c.tx != nil {
		c.tx.pinned(why, by == "")
	}
	if c.pinned == "" || by == "" {
		c.pinned, c.pinnedBy = why, by
	}
}

// pinBy is pin by a statement: its beginning shows the kind of state.
func (c *Conn) pinBy(s statement) {
	start, why := strings.ToUpper(s.SQL[:min(len(s.SQL), 200)]), sessionState
	switch kind := s.class.Kind; {
	case kind == sqltext.Control, kind == sqltext.Rollback, kind == sqltext.Savepoint:
		why = controlledByText
	case strings.Contains(start, "LOCK"):
		why = "the session holds a lock, as migrators take one, that another connection would not hold"
	case strings.Contains(start, "TEMP"):
		why = "the session holds a temporary table that another connection would not see"
	}
	c.pin(why, s.SQL)
}

// carry notes the change of the session by s. The entries of the connection's further writes carry
// the change if they can.
func (c *Conn) carry(ctx context.Context, s statement) {
	if carried := c.c.dialect.Carried; carried != nil && c.pinned == "" && (s.class.Kind == sqltext.Session || s.class.Kind == sqltext.Multi) {
		if settings, apply, ok := carried(ctx, c.inner, c.c.target.Settings, s.SQL); ok {
			if with := c.c.with(settings, apply); with != nil {
				c.c = with
				return
			}
		}
	}
	c.pinBy(s)
}

// keepsState reports whether the connection may be handed to its next user with
// the session as it is.
func (c *Conn) keepsState() bool {
	return c.pinned == "" || c.c.cfg.KeepSessionState || c.c.target.NoSideConnection || c.c.target.InMemory
}

// resettable reports whether a reset of the session ends all of its state. Code with the driver's
// own connection may have left state beyond that.
func (c *Conn) resettable() bool {
	return c.pinnedBy != "" && c.c.dialect.Reset != nil && !c.c.foreign
}

// resetPinned readies a pinned connection for its next user; false if it cannot.
func (c *Conn) resetPinned(ctx context.Context) bool {
	d := c.c.dialect
	open := d.Idle != nil && !d.Idle(c.inner) // a transaction, which would undo the reset
	if !c.resettable() || open || d.Reset(ctx, c.inner) != nil {
		c.warnReturned(wasClosed)
		return false
	}
	c.warnReturned("bed: the session of a connection that holds state was reset when it went back to the pool")
	c.pins = pins{warned: c.warned}
	return true
}

// warnReturned warns once about pinned connections that return to the pool.
func (c *Conn) warnReturned(message string) {
	if c.c.returned.Swap(true) {
		return
	}
	fields := logrus.Fields{"reason": c.pinned, "advice": "put settings into the DSN, give session work a connection of its own (sql.DB.Conn); " +
		"Config.KeepSessionState keeps such connections as they are, with their writes unlogged"}
	if c.pinnedBy != "" {
		fields["pinned_by"] = shown(c.c.dialect.Flavor, c.pinnedBy)
	}
	c.c.log.WithFields(fields).Warn(message)
}

const wasClosed = "bed: a connection whose session holds state was closed when it went back to the pool"
