package delivery

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/txlog"
)

// SessionError reports a difference between the current session and the unit's session. In
// the current one the unit could mean other values, or another place.
type SessionError struct {
	// Entry is the session in the unit's entry, Has the current one; see Facts.Session.
	Entry, Has string
	// Err is the reason why adapting the session failed; may be nil.
	Err error
}

func (e *SessionError) Error() string {
	entry, has := strings.Split(e.Entry, ";"), strings.Split(e.Has, ";")
	only := func(of, other []string) string {
		of = slices.DeleteFunc(slices.Clone(of), func(s string) bool { return slices.Contains(other, s) })
		for i, s := range of { // a setting of the application's own may be a secret
			if name, _, _ := strings.Cut(s, "="); strings.ContainsAny(name, ".@") {
				of[i] = name + "=(not shown)"
			}
		}
		if len(of) == 0 {
			return "nothing else"
		}
		return strings.Join(of, ";")
	}
	text := fmt.Sprintf("not delivered: the entry was written in a session that has %s, but this session has %s", only(entry, has), only(has, entry))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; give this account the rights or the settings of the application's"
}

// Unwrap returns the database's error.
func (e *SessionError) Unwrap() error { return e.Err }

// Certainly returns Retryable: the write was not sent, and may be later.
func (*SessionError) Certainly() Class { return Retryable }

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
	e := &SessionError{Entry: t.Session, Has: has}
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
			err = &SessionError{Entry: asked, Has: has}
		}
		return err
	}
	now, err := d.Session(ctx, conn, t.Session)
	if err == nil && now != t.Session {
		err = &SessionError{Entry: t.Session, Has: now}
	}
	return err
}
