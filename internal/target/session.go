package target

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
)

// SameAccount returns nil if t's account may deliver u, else an ElsewhereError. An entry without a Session
// needs its writer's account, which leads to the same session.
func SameAccount(t *delivery.Target, u *entry.Unit) error {
	if u.Session != "" || u.Account == "" || u.Account == t.Account {
		return nil
	}
	return otherAccount(t, u)
}

var errNoOther = errors.New("its target cannot be given other settings")

// In returns the target for sessions with u's Settings and Session, or an ElsewhereError.
func In(t delivery.Target, u *entry.Unit) (delivery.Target, error) {
	if u.Settings != t.Settings {
		with, err := t, errNoOther
		if t.With != nil {
			with, err = t.With(u.Settings)
		}
		if err != nil { // the unit would have another meaning with t's own settings
			return t, otherSettings(&t, u.Settings, err)
		}
		with.DataSource = t.DataSource
		t = with
	}
	t.Session = u.Session
	return t, nil
}

// Dial opens a connection, greets its session, and adapts it to t.Session. A failure to adapt is an
// ElsewhereError.
func Dial(ctx context.Context, t *delivery.Target) (driver.Conn, dialect.Facts, error) {
	conn, err := t.Connector.Connect(ctx)
	if err != nil || t.Dialect.Greet == nil {
		return conn, dialect.Facts{}, err
	}
	facts, err := t.Dialect.Greet(ctx, conn)
	if err == nil {
		err = adapt(ctx, t, conn, facts.Session)
	}
	if err != nil {
		_ = conn.Close()
		return nil, dialect.Facts{}, err
	}
	return conn, facts, nil
}

// Look is Dial for a mere look: it does not create the file of a SQLite database.
func Look(ctx context.Context, t *delivery.Target) (driver.Conn, error) {
	if t.File != "" {
		if _, err := os.Stat(t.File); errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	conn, _, err := Dial(ctx, t)
	return conn, err
}

// adapt brings the session of conn, known as has, to t.Session, and checks the result.
func adapt(ctx context.Context, t *delivery.Target, conn driver.Conn, has string) error {
	d := t.Dialect
	if t.Session == "" || has == t.Session {
		return nil
	}
	if has == "" || d.Adapt == nil || d.Pooled != nil && d.Pooled(conn) {
		return OtherSession(t.Session, has, nil)
	}
	failed := d.Adapt(ctx, conn, has, t.Session)
	if failed != nil && !d.Class(failed).Answered() {
		return failed
	}
	now, err := d.Session(ctx, conn, t.Session)
	if err != nil || now == t.Session {
		return err
	}
	return OtherSession(t.Session, now, failed)
}

// StillIn checks again that the session of conn matches t. It is for servers with another session
// in each transaction. If t.Session is unknown, it checks t.Settings: a pooler may have dropped
// them.
func StillIn(ctx context.Context, t *delivery.Target, conn driver.Conn) error {
	d := t.Dialect
	if d.Resets && t.Session != "" {
		has, err := d.Session(ctx, conn, t.Session)
		if err != nil {
			return err
		}
		return adapt(ctx, t, conn, has)
	}
	if d.Pooled == nil || !d.Pooled(conn) || t.Session == "" && d.Obeys == nil {
		return nil
	}
	var has string
	var err error
	want := t.Session
	if want == "" {
		has, want, err = d.Obeys(ctx, conn, t.Settings)
	} else {
		has, err = d.Session(ctx, conn, want)
	}
	if err == nil && has != want {
		err = OtherSession(want, has, nil)
	}
	return err
}

// Follow brings a connection of s.Greeted to the session of u, which sets the same settings as s's.
// They may differ in values of the application's own.
func (s *Source) Follow(ctx context.Context, conn driver.Conn, u *entry.Unit) error {
	known, ok := conn.(*attempt.Session)
	if !ok || u.Session == "" || u.Session == known.Facts.Session {
		return nil
	}
	t := s.Target
	t.Session = u.Session
	err := adapt(ctx, &t, known.Conn, known.Facts.Session)
	if err == nil {
		known.Facts.Session = u.Session
	}
	return err
}

// InSession makes sure that u runs in the session of its entry, because nothing of u was sent in
// another one. An entry has no session if no connection of its kind had been dialled; it gets its
// session now. Only an *attempt.Session knows its session; any other connection was dialled for u,
// and is checked by StillIn.
func (s *Source) InSession(ctx context.Context, conn driver.Conn, u *entry.Unit) error {
	known, ok := conn.(*attempt.Session)
	if !ok {
		t := s.Target
		t.Session = u.Session
		return StillIn(ctx, &t, conn)
	}
	switch has := known.Facts.Session; {
	case has == u.Session:
	case u.Session != "" && s.Named:
		t := s.Target
		t.Session, known.Adapted = u.Session, true
		return adapt(ctx, &t, known, has)
	case u.Session != "":
		return OtherSession(u.Session, has, nil)
	case u.Lease.Deadline.IsZero() && !u.AtOnce: // it is not in the log, or not yet
		u.Session = has
	default:
		if err := s.Log.Locate(ctx, u, u.Place, has); err != nil {
			return unwritten("what its session is", err)
		}
	}
	return nil
}

// maxIdleTime is how long a pool keeps an unused connection. A target is idle most of the time.
const maxIdleTime = time.Minute

// Pool holds connections to a source. Only attempts run on them, so they hold no session state.
type Pool struct {
	t    *delivery.Target
	dial func(context.Context) (attempt.Session, error)
	db   func() *sql.DB // opened at first use
}

// NewPool makes a pool of at most size connections from dial. A dial of more than 30 seconds is an
// error.
func (s *Source) NewPool(size int, dial func(context.Context) (attempt.Session, error)) *Pool {
	p := &Pool{t: &s.Target, dial: dial}
	p.db = sync.OnceValue(func() *sql.DB {
		db := sql.OpenDB(p)
		db.SetMaxOpenConns(size)
		db.SetMaxIdleConns(size)
		db.SetConnMaxIdleTime(maxIdleTime)
		return db
	})
	return p
}

// Greeted makes a pool whose connections are in s's session.
func (s *Source) Greeted(size int) *Pool {
	return s.NewPool(size, func(ctx context.Context) (attempt.Session, error) {
		conn, facts, err := Dial(ctx, &s.Target)
		facts.Session = cmp.Or(s.Session, facts.Session)
		return attempt.Session{Conn: conn, Facts: facts}, err
	})
}

// DB returns the pool, opened.
func (p *Pool) DB() *sql.DB { return p.db() }

// Driver implements driver.Connector.
func (p *Pool) Driver() driver.Driver { return p.t.Connector.Driver() }

// Connect implements driver.Connector.
func (p *Pool) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	session, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &pooledConn{Session: session}, nil
}

// pooledConn is a connection of the pool.
type pooledConn struct {
	attempt.Session
	used bool
}

// ResetSession implements driver.SessionResetter.
func (p *pooledConn) ResetSession(ctx context.Context) error {
	if r, ok := p.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements driver.Validator.
func (p *pooledConn) IsValid() bool {
	v, ok := p.Conn.(driver.Validator)
	return !ok || v.IsValid()
}

// On runs f as one attempt on a connection of the pool, an *attempt.Session. It drops a connection
// that is lost, cannot write, or is in another session. With checked, it first checks a used
// connection if this is worth a round trip. It bypasses sql.Conn, because that would run a write
// again after driver.ErrBadConn. dialled is false without a connection.
func (p *Pool) On(ctx context.Context, checked bool, f func(driver.Conn) attempt.Outcome) (out attempt.Outcome, dialled bool) {
	for stale := true; stale; {
		conn, err := p.db().Conn(ctx)
		if err != nil {
			return attempt.Outcome{Err: err, Class: p.t.Dialect.DialClass(err)}, false
		}
		_ = conn.Raw(func(dc any) error {
			conn := dc.(*pooledConn)
			if stale = checked && conn.used && attempt.Ping(ctx, &conn.Session) != nil; stale {
				return driver.ErrBadConn
			}
			conn.used = true
			out = f(&conn.Session)
			if out.ConnLost || conn.Adapted || out.Err != nil && (errors.As(out.Err, new(*ElsewhereError)) || p.ReadOnly(out.Err)) {
				return driver.ErrBadConn // the pool drops it
			}
			return nil
		})
		_ = conn.Close()
	}
	return out, true
}

// ReadOnly reports whether err means that the server or session is read-only.
func (p *Pool) ReadOnly(err error) bool {
	return p.t.Dialect.ReadOnly != nil && p.t.Dialect.ReadOnly(err)
}

// Ask is On for f, a question. It drops the connection after an error, because of its unknown
// state. An error without a connection is Unreachable: it answers no question.
func (p *Pool) Ask(ctx context.Context, f func(driver.Conn) error) error {
	out, dialled := p.On(ctx, false, func(conn driver.Conn) attempt.Outcome {
		err := f(conn)
		return attempt.Outcome{Err: err, ConnLost: err != nil}
	})
	if !dialled {
		return attempt.Certain(out.Err, dialect.Unreachable)
	}
	return out.Err
}

// Close closes its connections.
func (p *Pool) Close() error { return p.db().Close() }
