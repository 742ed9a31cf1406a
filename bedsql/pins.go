package bedsql

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// pins says why a connection's writes run unlogged: its session holds state that
// another one would not see.
type pins struct {
	// pinned says why; empty if they do not.
	pinned string
	// pinnedBy is the statement that left the state behind; empty for none.
	pinnedBy string
	// warned: the one warning about it was given.
	warned bool
	// changed are the settings that were changed and not put back, with what they
	// were before.
	changed map[string]string
	// otherwise: there is more than settings.
	otherwise bool
}

// assigned is a setting that a statement is about to change.
type assigned struct {
	sqltext.Assignment
	before string
}

// before gives the settings that s is about to change, with their present values;
// nil if these cannot be read, so that nothing will show that they were put back.
func (p *pins) before(ctx context.Context, c *bareConn, s statement, inTx bool) (list []assigned) {
	d := c.c.dialect
	if s.class.Kind != sqltext.Session || !s.class.Pins || d.Setting == nil || p.otherwise || inTx && d.Flavor == txlog.FlavorPostgres {
		return nil
	}
	for _, a := range sqltext.Assignments(sqltext.Flavor(d.Flavor), s.query) {
		was, known := p.changed[a.Name]
		if !known {
			var err error
			if was, err = c.setting(ctx, a.Name); err != nil {
				return nil
			}
		}
		list = append(list, assigned{a, was})
	}
	return list
}

// settingTimeout bounds the question for a setting.
const settingTimeout = 5 * time.Second

// setting asks the session for a setting.
func (c *bareConn) setting(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, settingTimeout)
	defer cancel()
	value, err := c.c.dialect.Setting(ctx, c.inner, name)
	return sqltext.SettingValue(value), err
}

// putBack asks the session whether what looks put back is, after the statement
// that assigned it: SQLite ignores some settings in a transaction, to PostgreSQL a
// list in quotes is one name, and behind a pooler RESET gives the server's default
// and not the DSN's.
func (p *pins) putBack(ctx context.Context, c *bareConn, settings []assigned) {
	for i := range settings {
		a := &settings[i]
		if _, changed := p.changed[a.Name]; !a.Reset && (!changed || a.Value != a.before) {
			continue
		}
		if now, err := c.setting(ctx, a.Name); err != nil || now != a.before {
			a.Value, a.Reset = "", false
		}
	}
}

// by notes that a statement left something behind: settings, if that is all.
func (p *pins) by(query string, settings []assigned) {
	if p.pinned == "" {
		p.pinned, p.pinnedBy = sessionState, query
	}
	if p.otherwise = p.otherwise || settings == nil; p.otherwise {
		return
	}
	for _, a := range settings {
		if a.Reset || a.Value != "" && a.Value == a.before {
			delete(p.changed, a.Name)
			continue
		}
		if p.changed == nil {
			p.changed = map[string]string{}
		}
		p.changed[a.Name] = a.before
	}
	if len(p.changed) == 0 {
		p.pinned, p.pinnedBy = "", ""
	}
}

// forGood notes a state that neither a statement nor a reset is seen to end.
func (p *pins) forGood(why string) {
	p.pinned, p.pinnedBy, p.otherwise = why, "", true
}

// resettable reports whether a reset of the session ends all of it: what was done
// with the driver's own connection may have changed that as well.
func (p *pins) resettable(c *connector) bool {
	return p.pinnedBy != "" && c.dialect.Reset != nil && !c.foreign
}

// reused readies a pinned connection for its next user; false if that is not
// possible.
func (p *pins) reused(ctx context.Context, c *bareConn) bool {
	if !p.resettable(c.c) || c.c.dialect.Reset(ctx, c.inner) != nil {
		p.tell(c.c, wasClosed)
		return false
	}
	p.tell(c.c, "bed: the session of a connection that holds state was reset when it went back to the pool")
	*p = pins{warned: p.warned}
	return true
}

const wasClosed = "bed: a connection whose session holds state was closed when it went back to the pool"

// tell says once, in a log line, what becomes of connections that are pinned.
func (p *pins) tell(c *connector, message string) {
	if c.returned.Swap(true) {
		return
	}
	fields := logrus.Fields{"reason": p.pinned, "advice": "put settings into the DSN, give session work a connection of its own (sql.DB.Conn); " +
		"Config.KeepSessionState keeps such connections as they are, with their writes unlogged"}
	if p.pinnedBy != "" {
		fields["pinned_by"] = shown(sqltext.Flavor(c.dialect.Flavor), p.pinnedBy)
	}
	c.log.WithFields(fields).Warn(message)
}
