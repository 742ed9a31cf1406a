package bedsql

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// pins are why the writes of a connection run unlogged: its session holds state
// that another one would not see.
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

// before gives the settings that s is about to change, with what they are; nil
// if that cannot be told, so that they cannot be seen to be put back.
func (p *pins) before(ctx context.Context, c *bareConn, s statement, inTx bool) (list []assigned) {
	d := c.c.dialect
	if s.class.Kind != sqltext.Session || !s.class.Pins || d.Setting == nil || p.otherwise || inTx && d.Flavor == txlog.FlavorPostgres {
		return nil
	}
	for _, a := range sqltext.Assignments(sqltext.Flavor(d.Flavor), s.query) {
		was, known := p.changed[a.Name]
		if !known && !a.Reset {
			ctx, cancel := context.WithTimeout(ctx, settingTimeout)
			value, err := d.Setting(ctx, c.inner, a.Name)
			cancel()
			if err != nil {
				return nil
			}
			was = sqltext.SettingValue(value)
		}
		list = append(list, assigned{a, was})
	}
	return list
}

// settingTimeout bounds the question for a setting.
const settingTimeout = 5 * time.Second

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

// forGood notes a state that no statement is seen to end.
func (p *pins) forGood(why string) {
	if p.pinned == "" {
		p.pinned = why
	}
	p.otherwise = true
}

// resettable reports whether a reset of the session ends all of it: what was done
// with the driver's own connection may have changed that as well.
func (p *pins) resettable(c *connector) bool {
	return p.pinnedBy != "" && c.dialect.Reset != nil && !c.foreign
}

// reused readies a connection that is pinned for its next user: false if it
// cannot be.
func (p *pins) reused(ctx context.Context, c *bareConn) bool {
	if !p.resettable(c.c) || c.c.dialect.Reset(ctx, c.inner) != nil {
		return false
	}
	p.tell(c.c, "bed: the session of a connection that holds state was reset when it went back to the pool")
	*p = pins{warned: p.warned}
	return true
}

// tell tells once what becomes of connections that are pinned.
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
