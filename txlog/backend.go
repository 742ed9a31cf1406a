package txlog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
)

// dialError marks an error from before anything could be sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// session is a connector that sets up each new connection for the log, whatever the DSN
// says.
type session struct {
	driver.Connector
	flavor sqltext.Flavor
}

func (s *session) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, &dialError{err}
	}
	for _, text := range sessionSetup(s.flavor) {
		execer, ok := conn.(driver.ExecerContext)
		if !ok {
			err = fmt.Errorf("txlog: connections of %T cannot execute a statement that is not prepared", s.Driver())
		} else {
			_, err = execer.ExecContext(ctx, text, nil)
		}
		if err != nil {
			_ = conn.Close()
			return nil, &dialError{err}
		}
	}
	if c, ok := conn.(mysqlConn); ok && s.flavor == sqltext.MySQL {
		return bounded{c}, nil
	}
	return conn, nil
}

// mysqlConn lists the methods of go-sql-driver's connections.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// bounded ends transactions under the context of their BEGIN, as pgx does. A transaction of
// go-sql-driver would wait for the answer to its COMMIT for as long as the connection seems
// to live.
type bounded struct{ mysqlConn }

func (c bounded) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if _, err := c.mysqlConn.BeginTx(ctx, opts); err != nil {
		return nil, err
	}
	return boundedTx{ctx, c}, nil
}

type boundedTx struct {
	ctx  context.Context
	conn driver.ExecerContext
}

func (tx boundedTx) Commit() error { return tx.end(tx.ctx, "COMMIT") }

// Rollback also works when the context is done.
func (tx boundedTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tx.ctx), rollbackTimeout)
	defer cancel()
	return tx.end(ctx, "ROLLBACK")
}

func (tx boundedTx) end(ctx context.Context, text string) error {
	_, err := tx.conn.ExecContext(ctx, text, nil)
	return err
}

// rollbackTimeout bounds a ROLLBACK. Closing its connection has the same effect.
const rollbackTimeout = 5 * time.Second

// Close closes the inner connector if it is closable.
func (s *session) Close() error {
	if c, ok := s.Connector.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

// backend is the log's database.
type backend struct{ logdb.Backend }

// definite reports whether err proves the absence of a write.
func (b *backend) definite(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) || errors.Is(err, errNotSent) {
		return true
	}
	// ErrBadConn is a promise of the driver that it sent nothing. Distrusting it costs one more
	// INSERT under the same id.
	return !errors.Is(err, driver.ErrBadConn) && !ended(err) && b.Answered(err)
}

// refused reports whether the database rejected the content of a write, so that a part of
// the write might pass. It returns false for an unreachable database and for contention.
func (b *backend) refused(err error) bool {
	return errors.Is(err, errHeld) || b.Answered(err) && !b.passing(err) && !errors.As(err, new(*dialError))
}

// errNotSent marks failures other than dial errors from before a statement left.
var errNotSent = errors.New("it was not sent")

// passing reports whether a definite error is worth an immediate retry of the same
// statement. Its cause is another transaction (a deadlock, a lock timeout, a serialization
// failure) or a connection that died in the pool or before COMMIT left.
func (b *backend) passing(err error) bool {
	if errors.Is(err, errHeld) {
		return false
	}
	if errors.Is(err, driver.ErrBadConn) || dberr.Of(err).Contended() {
		return true
	}
	var dial *dialError
	return errors.Is(err, errNotSent) && !errors.As(err, &dial) && !b.Answered(err) && !ended(err)
}

// ended reports whether err comes from a context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
