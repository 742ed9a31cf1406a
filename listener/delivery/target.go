package delivery

import (
	"database/sql/driver"

	"github.com/bedsql/bed/internal/dialect"
)

// Target is a data source to deliver to.
type Target struct {
	// Connector dials the bare driver.
	Connector driver.Connector
	// Dialect describes its database.
	Dialect *dialect.Dialect
	// DataSource is its name in the log.
	DataSource string
	// Settings are the DSN's settings of values and names: see entry.Unit.
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
