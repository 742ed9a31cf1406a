package delivery

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/txlog"
)

// SameAccount returns nil if t's account may deliver u, else the reason. An entry without a
// Session needs its writer's account, which leads to the same session.
func (t *Target) SameAccount(u *txlog.Unit) error {
	if u.Session != "" || u.Account == "" || u.Account == t.Account {
		return nil
	}
	return fmt.Errorf("not delivered: the entry was written before its application had reached the database, by the account %q, and the "+
		"session of another account (%q) may lead elsewhere; deliver it once by a job whose DSN has that account", u.Account, t.Account)
}

// In returns the target for sessions with a unit's Settings and Session. An error explains
// why there is none.
func (t Target) In(settings, session string) (Target, error) {
	if settings != t.Settings {
		if t.With == nil {
			return t, errNoOther
		}
		with, err := t.With(settings)
		if err != nil {
			return t, err
		}
		t = with
	}
	t.Session = session
	return t, nil
}

// adapt brings the session of conn, known as has, to t.Session, and checks the result.
func (t *Target) adapt(ctx context.Context, conn driver.Conn, has string) error {
	d := t.Dialect
	if t.Session == "" || has == t.Session {
		return nil
	}
	e := &dialect.SessionError{Entry: t.Session, Has: has}
	if has == "" || d.Adapt == nil || d.Pooled != nil && d.Pooled(conn) {
		return e
	}
	if e.Err = d.Adapt(ctx, conn, has, t.Session); e.Err != nil && !d.Class(e.Err).Answered() {
		return e.Err
	}
	now, err := d.Session(ctx, conn, t.Session)
	if err != nil {
		return err
	}
	if e.Has = now; now == t.Session {
		return nil
	}
	return e
}

// StillIn checks again that the session of conn matches t. It is for servers with another
// session in each transaction. If t.Session is unknown, it checks t.Settings: a pooler may
// have dropped them.
func (t *Target) StillIn(ctx context.Context, conn driver.Conn) error {
	d := t.Dialect
	if d.Pooled == nil || !d.Pooled(conn) {
		return nil
	}
	if t.Session == "" {
		if d.Obeys == nil {
			return nil
		}
		has, asked, err := d.Obeys(ctx, conn, t.Settings)
		if err == nil && has != asked {
			err = &dialect.SessionError{Entry: asked, Has: has}
		}
		return err
	}
	now, err := d.Session(ctx, conn, t.Session)
	if err == nil && now != t.Session {
		err = &dialect.SessionError{Entry: t.Session, Has: now}
	}
	return err
}
