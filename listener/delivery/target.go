package delivery

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/bedsql/bed/internal/dberr"
)

// Target is a data source to deliver to.
type Target struct {
	// Connector dials the bare driver.
	Connector driver.Connector
	// Dialect is its database's.
	Dialect *Dialect
	// DriverLog says where the driver's own log lines go. They are left out when
	// it was not called. nil for a driver that writes none.
	DriverLog func(to func(line string))
	// DataSource is its name in the log.
	DataSource string
	// Settings is what its DSN says of values and names: see txlog.Unit.
	Settings string
	// Account is the user that its sessions log in as; empty if that is not known, or
	// decides nothing there.
	Account string
	// ReceiptSchema is the schema of their own in which receipts are kept, in MySQL a
	// database of the same server; empty for where its sessions' unqualified names
	// lead. It is part of Settings.
	ReceiptSchema string
	// Session is what its sessions must say of themselves (Facts.Session), with which
	// they are dialled; empty for what the server gives them.
	Session string
	// With gives the target of the same address and account whose sessions have
	// other settings; an error says why there is none. Nil: there never is.
	With func(settings string) (Target, error)
	// NoSideConnection is whether a second connection of Connector would reach
	// another database than the first (SQLite's :memory:): a retry on a side
	// connection would then write into an empty database of its own.
	NoSideConnection bool
	// InMemory is whether the database is gone with the last connection to it.
	InMemory bool
	// File is the absolute path of a SQLite database's file; empty otherwise.
	File string
	// AutocommitOff is whether the DSN itself turns autocommit off, so that
	// every statement opens a transaction.
	AutocommitOff bool
}

var errNoOther = errors.New("its target cannot be given other settings")

// Dial opens a connection, greets its session, and gives it what t.Session says;
// else a SessionError.
func (t *Target) Dial(ctx context.Context) (driver.Conn, Facts, error) {
	conn, err := t.Connector.Connect(ctx)
	if err != nil || t.Dialect.Greet == nil {
		return conn, Facts{}, err
	}
	facts, err := t.Dialect.Greet(ctx, conn)
	if err == nil {
		err = t.adapt(ctx, conn, facts.Session)
	}
	if err != nil {
		_ = conn.Close()
		return nil, Facts{}, err
	}
	return conn, facts, nil
}

// Greeted gives a connector for a pool, whose connections are those of [Target.Dial].
// One that is not there within 30 seconds is an error.
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
