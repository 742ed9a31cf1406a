package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// Conn is a wrapped connection. Applications meet it in sql.Conn.Raw only; see
// its method Raw.
type Conn struct {
	bareConn
	// recent is the text it was given last.
	recent sqltext.Recent
	pins
	// autocommitOff says that SET autocommit=0 was sent: a transaction is always
	// open.
	autocommitOff bool
	// tx is the open local transaction; nil outside of any, and on a connection
	// whose writes are not logged.
	tx *localTx
	// noReceipts is why the table of receipts was not found before the last
	// transaction began.
	noReceipts error
	// stagedTx is the local transaction of a staged soft transaction, which
	// only records.
	stagedTx *stagedTx
	// spare is a closed statement to be used for the next one: where a driver
	// says ErrSkip, database/sql prepares one for each query.
	spare *convertingStmt
}

var (
	_ driver.Conn               = (*Conn)(nil)
	_ driver.ConnBeginTx        = (*Conn)(nil)
	_ driver.ConnPrepareContext = (*Conn)(nil)
	_ driver.ExecerContext      = (*Conn)(nil)
	_ driver.QueryerContext     = (*Conn)(nil)
	_ driver.NamedValueChecker  = (*Conn)(nil)
	_ driver.Pinger             = (*Conn)(nil)
	_ driver.SessionResetter    = (*Conn)(nil)
	_ driver.Validator          = (*Conn)(nil)
)

// Raw gives the driver's own connection, dialled if need be:
//
//	err := sqlConn.Raw(func(dc any) error {
//		inner, err := dc.(*bedsql.Conn).Raw(ctx)
//		…
//	})
//
// What is done with it cannot be seen, so from then on writes on this
// connection run unlogged (see Config.Pinned).
func (c *Conn) Raw(ctx context.Context) (driver.Conn, error) {
	if err := c.ensure(ctx); err != nil {
		return nil, err
	}
	c.pin("raw access to the connection")
	if b, ok := c.inner.(interface{ Bare() driver.Conn }); ok {
		return b.Bare(), nil
	}
	return c.inner, nil
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

// ResetSession implements driver.SessionResetter.
func (c *Conn) ResetSession(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	if c.tx != nil && c.tx.lost != nil {
		c.closed() // whoever was to roll back is gone
	}
	if !c.keepsState() && (c.tx != nil || !c.reused(ctx, &c.bareConn)) {
		c.kill()
		return driver.ErrBadConn
	}
	if c.has.SessionResetter != nil {
		return c.has.ResetSession(ctx)
	}
	return nil
}

// keepsState reports whether the connection may be handed to its next user with
// the session as it is.
func (c *Conn) keepsState() bool {
	return c.pinned == "" || c.c.cfg.KeepSessionState || c.c.target.NoSideConnection
}

// IsValid implements driver.Validator: [database/sql] asks before it puts a
// connection back into its pool.
func (c *Conn) IsValid() bool {
	if c.dead {
		return false
	}
	if !c.keepsState() && !c.resettable(c.c) {
		c.tell(c.c, wasClosed)
		return false
	}
	if c.has.Validator != nil {
		return c.has.IsValid()
	}
	return true
}

// Close implements driver.Conn.
func (c *Conn) Close() error {
	if c.inner == nil {
		return nil
	}
	return c.session.Close()
}

// CheckNamedValue implements driver.NamedValueChecker: the driver's own check,
// or what the dialect knows of it while the connection has not been dialled.
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

// read says what a text is to the session.
func (c *Conn) read(ctx context.Context, query string) sqltext.Class {
	class := c.recent.Get(c.c.texts, query)
	if !class.ByQuoting {
		return class
	}
	d := c.c.dialect
	switch {
	case c.ready(ctx) != nil:
		// There is no session to ask, and nothing has run. What is a write by any
		// reading is logged as one; the session that runs it reads its quotes.
		if class, ok := sqltext.AsWrite(sqltext.Flavor(d.Flavor), query); ok && !c.dead {
			return class
		}
		return sqltext.Class{Kind: sqltext.Opaque, Pins: true}
	case d.Quoting == nil && c.pinned != "":
		// Nobody can tell what it is, so it is not logged.
		return sqltext.Class{Kind: sqltext.Opaque, Pins: true}
	case d.Quoting != nil:
		return sqltext.ClassifyAs(sqltext.Flavor(d.Flavor), sqltext.Quoting(d.Quoting(c.inner)), query)
	}
	return sqltext.ClassifyAs(sqltext.Flavor(d.Flavor), sqltext.Quoting(c.session.Facts.Quoting), query)
}

// ExecContext implements driver.ExecerContext.
func (c *Conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.run(ctx, c.text(query, c.read(ctx, query)), args, false)
	return r.Result, err
}

// QueryContext implements driver.QueryerContext.
func (c *Conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	class := c.read(ctx, query)
	// What run comes to in the end for most statements.
	if class.Kind == sqltext.Read && !class.Pins && c.tx == nil && c.stagedTx == nil && c.has.QueryerContext != nil {
		return c.has.QueryContext(ctx, query, args)
	}
	r, err := c.run(ctx, c.text(query, class), args, true)
	return r.Rows, err
}

// stagedIn gives the staged soft transaction that a statement belongs to.
func (c *Conn) stagedIn(under scope) *SoftTransaction {
	if c.stagedTx != nil {
		return c.stagedTx.soft
	}
	if under.soft != nil && under.soft.staged != nil && !under.skip {
		return under.soft
	}
	return nil
}

// run runs a statement, with rows by Query.
func (c *Conn) run(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (attempt.Reply, error) {
	if s.class.Kind == sqltext.DML {
		return c.write(ctx, s, args, rows)
	}
	return c.control(ctx, s, args, rows)
}

// Prepare implements driver.Conn.
func (c *Conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements driver.ConnPrepareContext. A write that cannot be
// prepared now but may be later (the database is out of reach, or answers that
// it is starting up or full) is prepared later: it is met by Exec, which logs it.
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
			// Nothing was logged yet: database/sql may take another connection.
			return nil, err
		}
		why := c.c.dialect.DialClass(err)
		later := class.Kind == sqltext.DML && c.tx == nil && c.pinned == "" && ctx.Err() == nil &&
			why != delivery.Refused && why != delivery.Duplicate
		if !later {
			return nil, err
		}
		if c.inner != nil && !why.Answered() {
			c.kill()
		}
	}
	w := c.spare
	c.spare = nil
	if w == nil {
		w = new(convertingStmt)
	}
	w.stmt = stmt{c: c, statement: statement{query: query, class: class, prepared: inner}, whole: w}
	if c.c.dialect.PreparedByText && class.Kind == sqltext.DML {
		c.stmts = append(c.stmts, &w.stmt)
	}
	if cc, ok := inner.(driver.ColumnConverter); ok { //nolint:staticcheck // deprecated, but drivers have it
		w.columns = cc
		return w, nil
	}
	return &w.stmt, nil
}

// pin makes writes on this connection run unlogged from now on.
func (c *Conn) pin(why string) {
	if c.tx != nil {
		c.tx.unreplayable(why)
		c.tx.moved, c.tx.aborted = true, false
	}
	c.forGood(why)
}

// pinBy is pin by a statement that left something behind in the session.
// settings are those that it changed, if it did nothing else.
func (c *Conn) pinBy(s statement, settings []assigned) {
	if c.tx != nil {
		c.tx.unreplayable(sessionState)
		c.tx.moved, c.tx.aborted = true, false
	}
	c.by(s.query, settings)
}

// statement is a text with what it was read as, and its prepared form if it
// has one.
type statement struct {
	query    string
	class    sqltext.Class
	prepared driver.Stmt
	// late is the stmt if it could not be prepared when the application asked for
	// it, and has not been prepared since.
	late *stmt
}

// call is s as an attempt on its own connection runs it.
func (s *statement) call(args []driver.NamedValue) delivery.Call {
	return delivery.Call{SQL: s.query, Args: args, Prepared: s.prepared != nil || s.late != nil, Stmt: s.prepared}
}
