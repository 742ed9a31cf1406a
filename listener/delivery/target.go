package delivery

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
)

// Target is a data source to deliver to.
type Target struct {
	// Connector dials the bare driver.
	Connector driver.Connector
	// Dialect describes its database.
	Dialect *dialect.Dialect
	// DriverLog sets the destination of the driver's own log lines. Without a call the lines
	// are dropped. nil for a driver that writes none.
	DriverLog func(to func(line string))
	// DataSource is its name in the log.
	DataSource string
	// Settings are the DSN's settings of values and names: see txlog.Unit.
	Settings string
	// Account is the login user of its sessions; empty if unknown or irrelevant.
	Account string
	// ReceiptSchema is a separate schema for receipts, in MySQL a database of the same server.
	// Empty means the schema of unqualified names. It is part of Settings.
	ReceiptSchema string
	// Session is the required Facts.Session of its sessions, set on each dial; empty for the
	// server's choice.
	Session string
	// With returns the target of the same address and account with other session settings; an
	// error explains why there is none. A nil With means that there never is one.
	With func(settings string) (Target, error)
	// NoSideConnection is set if a second connection of Connector would reach another database
	// than the first (SQLite's :memory:): a retry on a side connection would then write into an
	// empty database of its own.
	NoSideConnection bool
	// InMemory is set if the database vanishes with its last connection.
	InMemory bool
	// File is the absolute path of a SQLite database's file; empty otherwise.
	File string
	// AutocommitOff is set if the DSN itself turns autocommit off. Every statement then opens a
	// transaction.
	AutocommitOff bool
}

var errNoOther = errors.New("its target cannot be given other settings")

// Dial opens a connection, greets its session, and adapts it to t.Session. A failure to
// adapt is a SessionError.
func (t *Target) Dial(ctx context.Context) (driver.Conn, dialect.Facts, error) {
	conn, err := t.Connector.Connect(ctx)
	if err != nil || t.Dialect.Greet == nil {
		return conn, dialect.Facts{}, err
	}
	facts, err := t.Dialect.Greet(ctx, conn)
	if err == nil {
		err = t.adapt(ctx, conn, facts.Session)
	}
	if err != nil {
		_ = conn.Close()
		return nil, dialect.Facts{}, err
	}
	return conn, facts, nil
}

// Greeted returns a connector for a pool, with connections as from [Target.Dial]. A
// connection that takes more than 30 seconds is an error.
func (t *Target) Greeted() driver.Connector { return &greeted{t.Connector, t} }

type greeted struct {
	driver.Connector
	t *Target
}

func (g *greeted) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	conn, _, err := g.t.Dial(ctx)
	return conn, err
}

// Close implements io.Closer: sql.DB.Close calls it.
func (g *greeted) Close() error {
	if c, ok := g.Connector.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
