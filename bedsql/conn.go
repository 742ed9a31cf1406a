package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// Conn is a wrapped connection. Applications meet it in sql.Conn.Raw only; see
// its method Raw.
type Conn struct {
	c *connector
	// inner is the driver's own connection, nil until first use.
	inner driver.Conn
	// session is inner with its dialect's memory of it.
	session attempt.Session
	// dead means that inner must not be used again. It is never redialled in place, because the
	// state of its session is gone.
	dead bool
	// nextTx means that MySQL's SET TRANSACTION was sent. It is for the application's next
	// transaction, and bed's own queries would use it up.
	nextTx bool
	// stmts are the prepared statements, for a driver that looks for each text among them (see
	// dialect.Dialect.PreparedByText).
	stmts []*stmt
	// recent is the text it was given last.
	recent sqltext.Recent
	pins
	// tx is the open local transaction of BeginTx; nil outside of any.
	tx *localTx
	// noReceipts is why the table of receipts was not found before the last
	// transaction began.
	noReceipts error
	// stagedTx is the local transaction of a staged soft transaction, which only records.
	stagedTx *stagedTx
	// spare is a closed statement for reuse: if a driver returns ErrSkip, database/sql prepares a
	// statement for each query.
	spare *convertingStmt
}

var (
	_ driver.ConnBeginTx        = (*Conn)(nil)
	_ driver.ConnPrepareContext = (*Conn)(nil)
	_ driver.ExecerContext      = (*Conn)(nil)
	_ driver.QueryerContext     = (*Conn)(nil)
	_ driver.NamedValueChecker  = (*Conn)(nil)
	_ driver.Pinger             = (*Conn)(nil)
	_ driver.SessionResetter    = (*Conn)(nil)
	_ driver.Validator          = (*Conn)(nil)
)

// Raw returns the driver's own connection, and dials it if needed:
//
//	err := sqlConn.Raw(func(dc any) error {
//		inner, err := dc.(*bedsql.Conn).Raw(ctx)
//		…
//	})
//
// bed cannot see how you use it, so from then on writes on this connection run unlogged (see
// Config.Pinned). While writes are recorded to commit with its transaction, Raw returns ErrStaged.
func (c *Conn) Raw(ctx context.Context) (driver.Conn, error) {
	if err := c.tx.carries(statement{class: sqltext.Class{ImplicitCommit: true}}); err != nil {
		return nil, err
	}
	if scopeOf(ctx).confined && !c.tx.keeps() {
		return nil, ErrOutsideRequest
	}
	if err := c.ensure(ctx); err != nil {
		return nil, err
	}
	c.pin("raw access to the connection", "")
	if b, ok := c.inner.(interface{ Bare() driver.Conn }); ok {
		return b.Bare(), nil
	}
	return c.inner, nil
}

// KeyRetention is how long an answer is kept under an idempotency key ([Config].KeyRetention). The
// error means that this database cannot keep answers.
func (c *Conn) KeyRetention() (time.Duration, error) {
	return c.c.cfg.KeyRetention, leavesReceipts(c.c.dialect, c.c.target.DataSource)
}

// Ping implements driver.Pinger.
func (c *Conn) Ping(ctx context.Context) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	if p, ok := c.inner.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

// Config returns the configuration of the connection's database, with its defaults. Reach it by
// [database/sql.Conn.Raw].
func (c *Conn) Config() Config { return c.c.cfg }

// ResetSession implements driver.SessionResetter.
func (c *Conn) ResetSession(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	if !c.keepsState() && !c.resetPinned(ctx) {
		c.dead = true
		return driver.ErrBadConn
	}
	if r, ok := c.inner.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements driver.Validator: [database/sql] asks before it puts a
// connection back into its pool.
func (c *Conn) IsValid() bool {
	if c.dead {
		return false
	}
	if !c.keepsState() && !c.resettable() {
		c.warnReturned(wasClosed)
		return false
	}
	if v, ok := c.inner.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}

// Close implements driver.Conn.
func (c *Conn) Close() error {
	if c.tx != nil {
		c.tx.closed()
	}
	if c.inner == nil {
		return nil
	}
	return c.session.Close()
}

// CheckNamedValue implements driver.NamedValueChecker. It uses the driver's own check, or the
// dialect's check before the connection is dialled.
func (c *Conn) CheckNamedValue(nv *driver.NamedValue) error {
	if c.inner != nil {
		if n, ok := c.inner.(driver.NamedValueChecker); ok {
			return n.CheckNamedValue(nv)
		}
		return driver.ErrSkip
	}
	if check := c.c.dialect.CheckNamedValue; check != nil {
		return check(nv)
	}
	return driver.ErrSkip
}

// ExecContext implements driver.ExecerContext.
func (c *Conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.route(ctx, scopeOf(ctx), c.asText(query, c.read(ctx, query), args, false))
	return r.Result, err
}

// QueryContext implements driver.QueryerContext.
func (c *Conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	class := c.read(ctx, query)
	// For most statements route would come to this in the end.
	if class.Kind == sqltext.Read && !class.Pins && c.tx == nil && c.stagedTx == nil {
		if q, ok := c.inner.(driver.QueryerContext); ok {
			return q.QueryContext(ctx, query, args)
		}
	}
	r, err := c.route(ctx, scopeOf(ctx), c.asText(query, class, args, true))
	return r.Rows, err
}

// route sends a statement along the right path.
func (c *Conn) route(ctx context.Context, under scope, s statement) (attempt.Reply, error) {
	if under.features != (features{}) {
		if r, err, done := c.asked(ctx, under, s); done {
			return r, err
		}
	}
	if s.class.Kind != sqltext.DML {
		return c.control(ctx, under, s)
	}
	if !c.c.isSQL {
		return c.dispatch(ctx, under, s)
	}
	if under.required.Given() {
		if err := under.require(&s.Call); err != nil {
			return attempt.Reply{}, err
		}
	}
	if under.soft != nil || c.stagedTx != nil {
		if soft := c.stagedIn(under); soft != nil {
			return soft.record(ctx, under, c, s)
		}
	}
	switch {
	case c.tx != nil:
		return c.tx.exec(ctx, under, s)
	case c.pinned != "" || s.class.Pins || s.class.NeedsSession || under.unlogged:
		return c.passThrough(ctx, under, s)
	case under.features != (features{}):
		return under.submit(ctx, c, s)
	}
	return c.submit(ctx, under, s, c.c.deliverer)
}

// read classifies a text for the session.
func (c *Conn) read(ctx context.Context, query string) sqltext.Class {
	class := c.recent.Get(c.c.texts, query)
	if !class.ByQuoting {
		return class
	}
	d := c.c.dialect
	bounded, cancel := context.WithTimeout(ctx, c.c.cfg.AttemptTimeout)
	defer cancel()
	switch {
	case c.ready(bounded) != nil:
		// There is no session to ask, and nothing has run. A text that every reading takes for a
		// write is logged as one, and read again by its session.
		if class, ok := sqltext.AsWrite(d.Flavor, query); ok && !c.dead {
			return class
		}
		return sqltext.Class{Kind: sqltext.Opaque, Pins: true}
	case d.Quoting == nil && c.pinned != "":
		// The text is unknown, so it is not logged.
		return sqltext.Class{Kind: sqltext.Opaque, Pins: true}
	case d.Quoting != nil:
		return sqltext.ClassifyAs(d.Flavor, d.Quoting(c.inner), query)
	}
	return sqltext.ClassifyAs(d.Flavor, c.session.Facts.Quoting, query)
}

// Prepare implements driver.Conn.
func (c *Conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements driver.ConnPrepareContext. It defers a write that cannot be prepared
// now but may be later (the database is unreachable, starting up or full). Exec then meets the
// error, and logs the write.
func (c *Conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	fresh := c.inner == nil
	class := c.read(ctx, query)
	var inner driver.Stmt
	err := c.ready(ctx)
	if err == nil {
		inner, err = c.prepare(ctx, query)
	}
	if err != nil {
		if c.tx != nil && c.inner != nil {
			c.failedInTx(ctx, err, true) // this may be the error that says that the transaction is gone
		}
		if errors.Is(err, driver.ErrBadConn) && !fresh {
			// Nothing was logged yet: database/sql may use another connection.
			return nil, err
		}
		why := c.c.dialect.DialClass(err)
		if c.inner == nil {
			why = c.c.dialClass(err)
		}
		later := class.Kind == sqltext.DML && c.tx == nil && c.pinned == "" && ctx.Err() == nil &&
			why != dialect.Refused && why != dialect.Duplicate
		if !later {
			return nil, err
		}
		if c.inner != nil && !why.Answered() {
			c.dead = true
		}
	}
	w := c.spare
	c.spare = nil
	if w == nil {
		w = new(convertingStmt)
	}
	w.stmt = stmt{c: c, statement: statement{Call: dialect.Call{SQL: query, Prepared: true, Stmt: inner}, class: class}, whole: w}
	if c.c.dialect.PreparedByText && class.Kind == sqltext.DML {
		c.stmts = append(c.stmts, &w.stmt)
	}
	if cc, ok := inner.(driver.ColumnConverter); ok { //nolint:staticcheck // deprecated, but drivers have it
		w.columns = cc
		return w, nil
	}
	return &w.stmt, nil
}

// prepare prepares a statement of the application's on the bare connection.
func (c *Conn) prepare(ctx context.Context, query string) (driver.Stmt, error) {
	st, err := attempt.Prepare(ctx, c.inner, query)
	if reusable := c.c.dialect.Reusable; err == nil && reusable != nil {
		st = reusable(c.inner, query, st)
	}
	return st, err
}

// ensure dials on first use. The error is the driver's.
func (c *Conn) ensure(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	if c.inner != nil {
		return nil
	}
	c.c.dials.Add(1)
	session, err := c.c.dial(ctx)
	if err != nil {
		return err
	}
	c.inner, c.session = session.Conn, session
	return nil
}

// ready is ensure for calls that may run on a dead connection: the driver itself returns the
// error.
func (c *Conn) ready(ctx context.Context) error {
	if c.inner != nil {
		return nil
	}
	return c.ensure(ctx)
}

// onOwn runs an attempt on the connection. It takes the connection out of use if the attempt lost
// it or the driver panicked: a transaction may be open on it, and the next attempt would commit
// that.
func (c *Conn) onOwn(f func() attempt.Outcome) attempt.Outcome {
	lost := true
	defer func() {
		if lost {
			c.dead = true
		}
	}()
	out := f()
	lost = out.ConnLost
	return out
}

var errNoOther = errors.New("bed: the connection is gone, and another one would reach another database (:memory:)")

// onChecked runs f as a further attempt on a checked connection: the caller's own while it
// answers, otherwise one of the pool.
func (c *Conn) onChecked(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	if !c.dead {
		if err := c.ensure(ctx); err != nil {
			return attempt.Outcome{Err: err, Class: c.c.dialClass(err)}
		}
		if attempt.Ping(ctx, c.inner) == nil {
			return c.onOwn(func() attempt.Outcome { return f(&c.session) })
		}
		if err := ctx.Err(); err != nil {
			return attempt.Outcome{Err: err, Class: dialect.Unreachable}
		}
		c.dead = true
	}
	if c.c.target.NoSideConnection {
		return attempt.Outcome{Err: errNoOther, Class: dialect.Unreachable}
	}
	return c.c.onChecked(ctx, f)
}

// onChecked runs f as a further attempt on a checked connection of the pool.
func (c *connector) onChecked(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	return c.onPool(ctx, true, f)
}

// lossy takes the connection out of use if the attempt lost it.
func (c *Conn) lossy(out attempt.Outcome) attempt.Outcome {
	if out.ConnLost {
		c.dead = true
	}
	return out
}

// statement is a statement with its class. A prepared one gets its arguments when it runs.
type statement struct {
	dialect.Call
	class sqltext.Class
	// rows means that it was sent through Query.
	rows bool
	// late is the stmt if it could not be prepared at the application's request, and is still
	// unprepared.
	late *stmt
}

// asText is a statement given as text. A write is sent as prepared if the driver would do so.
func (c *Conn) asText(query string, class sqltext.Class, args []driver.NamedValue, rows bool) statement {
	s := statement{Call: dialect.Call{SQL: query, Args: args}, class: class, rows: rows}
	for _, open := range c.stmts {
		if open.SQL == query && open.Stmt != nil {
			s.Prepared, s.Stmt = true, open.Stmt
			break
		}
	}
	return s
}

// send runs s on the bare connection, as a prepared statement if it is one. before means the same
// as for attempt.Send.
func (c *Conn) send(ctx context.Context, s statement) (res driver.Result, before bool, err error) {
	if err := s.prepareLate(ctx); err != nil {
		return nil, true, err
	}
	r, before, err := attempt.Send(ctx, c.inner, &s.Call, false)
	return r.Result, before, err
}

// sendOnce hands s to the driver as database/sql would. It returns driver.ErrSkip as it is, but a
// prepared statement must not return it.
func (c *Conn) sendOnce(ctx context.Context, s statement) (r attempt.Reply, err error) {
	if err := s.prepareLate(ctx); err != nil {
		return r, err
	}
	if s.Stmt != nil {
		return attempt.SendStmt(ctx, s.Stmt, s.Args, s.rows)
	}
	return attempt.SendText(ctx, c.inner, &s.Call, s.rows)
}
