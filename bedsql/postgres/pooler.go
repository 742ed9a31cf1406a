package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"strconv"
	"time"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector dials pgx's connections and detects poolers (PgBouncer in transaction mode).
// Behind a pooler each transaction may get another session of the server, which does not
// know the statements prepared in the first one, or has another text under their name. So a
// statement prepared there is never executed in a later transaction.
type connector struct {
	driver.Connector
	// names are the additional settings in the DSN to query.
	names []string
	// derived is the data source's name, if it was derived from the address.
	derived string
}

// Connect implements driver.Connector. One query returns the session's number, which a
// pooler hides from its clients, and the resolved settings for greet.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	std, ok := conn.(*stdlib.Conn)
	if !ok {
		return conn, nil
	}
	if c.derived != "" && dataSource(&std.Conn().Config().Config) != c.derived { // by BeforeConnect
		_ = conn.Close()
		return nil, dialects.ErrElsewhere
	}
	pg, s := std.Conn().PgConn(), sessionOf(std.Conn())
	pid, text, err := resolve(ctx, pg, c.names)
	s.resolved, s.asked = text, true
	switch {
	case err != nil && serverError(err) == nil:
		_ = conn.Close()
		return nil, err
	case err == nil && pid == strconv.FormatUint(uint64(pg.PID()), 10):
		if pool := field(reflect.ValueOf(c.Connector), "pool"); pool.IsValid() && !pool.IsNil() {
			return &borrowed{std}, nil
		}
		return conn, nil
	case std.Conn().Config().DescriptionCacheCapacity <= 0:
		_ = conn.Close()
		return nil, attempt.Certain(errors.New("bed: behind a connection pooler statements are described and not prepared: "+
			"remove description_cache_capacity=0 from the DSN"), dialect.Refused)
	}
	return &pooled{std}, nil
}

// stdlibConn returns pgx's own connection in conn, behind a pooler too; nil for another
// driver.
func stdlibConn(conn driver.Conn) *stdlib.Conn {
	switch c := attempt.Bare(conn).(type) {
	case *pooled:
		return c.Conn
	case *borrowed:
		return c.Conn
	case *stdlib.Conn:
		return c
	}
	return nil
}

// borrowed is a connection of a pgxpool, whose other users get it afterwards.
type borrowed struct{ *stdlib.Conn }

// Bare returns pgx's own connection.
func (b *borrowed) Bare() driver.Conn { return b.Conn }

// Close implements driver.Conn. It ends a session that adapt has changed.
func (b *borrowed) Close() error {
	conn := b.Conn.Conn()
	if sessionOf(conn).adapted {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return b.Conn.Close()
}

// Close implements io.Closer.
func (c *connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// pooled is a connection to a pooler.
type pooled struct{ *stdlib.Conn }

// Bare returns pgx's own connection.
func (c *pooled) Bare() driver.Conn { return c.Conn }

// described makes the server describe a call once, for the types of its parameters, and send
// its text each time. prepared selects the behaviour for a statement that the application
// prepared.
func (c *pooled) described(args []driver.NamedValue, prepared bool) []driver.NamedValue {
	if special(args) {
		return args
	}
	switch c.Conn.Conn().Config().DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec:
	default:
		if !prepared {
			return args
		}
	}
	all := make([]driver.NamedValue, 0, len(args)+1)
	all = append(all, driver.NamedValue{Ordinal: 1, Value: pgx.QueryExecModeCacheDescribe})
	for _, a := range args {
		a.Ordinal++
		all = append(all, a)
	}
	return all
}

// ExecContext implements driver.ExecerContext.
func (c *pooled) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) == 0 { // pgx sends the text alone
		return c.Conn.ExecContext(ctx, query, nil)
	}
	return c.Conn.ExecContext(ctx, query, c.described(args, false))
}

// QueryContext implements driver.QueryerContext.
func (c *pooled) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, query, c.described(args, false))
}

// Prepare implements driver.Conn.
func (c *pooled) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements driver.ConnPrepareContext: the server parses the text and
// describes its parameters.
func (c *pooled) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	conn := c.Conn.Conn()
	if conn.IsClosed() {
		return nil, driver.ErrBadConn
	}
	description, err := conn.Prepare(ctx, "", query)
	if err != nil {
		return nil, err
	}
	return &text{c: c, query: query, params: len(description.ParamOIDs)}, nil
}

// text is a statement of a pooled connection.
type text struct {
	c      *pooled
	query  string
	params int
}

var (
	_ driver.StmtExecContext  = (*text)(nil)
	_ driver.StmtQueryContext = (*text)(nil)
)

func (s *text) Close() error                               { return nil }
func (s *text) NumInput() int                              { return s.params }
func (s *text) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }
func (s *text) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip }

func (s *text) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.Conn.ExecContext(ctx, s.query, s.c.described(args, true))
}

func (s *text) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.Conn.QueryContext(ctx, s.query, s.c.described(args, true))
}
