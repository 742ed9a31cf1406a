package dialect

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// TxState is the state of a local transaction after an error.
type TxState uint8

const (
	// Committed means a committed transaction.
	Committed TxState = iota
	// StillOpen means an unchanged transaction.
	StillOpen
	// InDoubt means a transaction with an unknown outcome.
	InDoubt
)

// ModeQuoting returns the quoting of MySQL's sql_mode.
func ModeQuoting(sqlMode string) (q sqltext.Quoting) {
	for mode := range strings.SplitSeq(sqlMode, ",") {
		switch mode {
		case "NO_BACKSLASH_ESCAPES":
			q |= sqltext.BackslashIsPlain
		case "ANSI_QUOTES":
			q |= sqltext.QuotesAreNames
		}
	}
	return q
}

// Dialect describes one kind of database. It is immutable and safe for concurrent use. Nil
// functions have the default in their comment.
type Dialect struct {
	// Name is the kind's name in configurations: "mysql", "postgres", "sqlite".
	Name string
	// System is the kind's name in OpenTelemetry, Namespace the database of the sessions; either
	// may be empty for unknown.
	System, Namespace string
	// Flavor is its SQL dialect.
	Flavor sqltext.Flavor
	// Classify classifies err (not nil, as returned by the driver) for a statement on a live
	// connection. Default: by SQLSTATE if the error has one, else Unknown.
	Classify func(err error) Class
	// Mistake reports whether err, a refusal, comes from the statement, the schema or a missing
	// right, whatever the values: the service has caused it. Default: by SQLSTATE.
	Mistake func(err error) bool
	// Undecoded reports whether the driver itself made err while reading a row from the server:
	// the statement was carried out. The rows could then be closed without an error. Default:
	// false.
	Undecoded func(err error) bool
	// PreparedByText is set if the driver, while a prepared statement is open, also sends the
	// same text as prepared.
	PreparedByText bool
	// Reusable returns a replacement for st, which was prepared from query on conn, for any
	// number of executions. Default: st.
	Reusable func(conn driver.Conn, query string, st driver.Stmt) driver.Stmt
	// CheckNamedValue is the driver's own parameter check, without a connection. Default:
	// driver.ErrSkip (the default converter).
	CheckNamedValue func(*driver.NamedValue) error
	// Amend returns the parameters to store for a statement that an operator puts in place of
	// old, or why it cannot take its place. Default: the database decides.
	Amend func(old, to Call) ([]driver.NamedValue, error)
	// Storable turns a parameter for the driver into a value for the log with the same meaning
	// on replay. Its error explains why that is impossible. It returns values unchanged that
	// the log keeps as they are (see entry.EncodeParams). It is not called for nil, a bool, an
	// int64, a float64, a string and non-nil bytes. Default: all values unchanged.
	Storable func(v any) (any, error)
	// Sendable returns the index and the error of an argument that the driver can never send in
	// the call's mode, whatever the server. given are the application's arguments, call.Args
	// the results of Storable. It is only called together with Storable. Default: all arguments
	// are sendable.
	Sendable func(given []driver.NamedValue, call Call) (int, error)
	// Greet queries the settings of a new session, and changes those that would keep a
	// successful write from being committed. There is no open transaction. Default: it queries
	// no settings.
	Greet func(ctx context.Context, conn driver.Conn) (Facts, error)
	// Session queries the session of conn again for Facts.Session, with all the names in like.
	// Adapt changes the settings of the session that differ from want. Default: no session is
	// known or adaptable.
	Session func(ctx context.Context, conn driver.Conn, like string) (string, error)
	Adapt   func(ctx context.Context, conn driver.Conn, has, want string) error
	// Named queries the session of conn for the settings in names, and returns session, an
	// earlier Facts.Session of it, with their values. unset is a setting without a value; empty
	// if all have one. Nameable returns why the setting name, in lower case, cannot be queried
	// and set like this. Default: no setting can.
	Named    func(ctx context.Context, conn driver.Conn, session string, names []string) (now, unset string, err error)
	Nameable func(name, receiptSchema string) error
	// Hooked is set if the connector may run the application's code on its connections. Resets is
	// set if it may also do so at each checkout, after the dial.
	Hooked, Resets bool
	// Pooled reports whether each transaction on conn may get another session of the server, so
	// that settings do not last. Default: false.
	Pooled func(conn driver.Conn) bool
	// Obeys queries the session of conn for Facts.Session, and for its value under the settings
	// of a Target, which a Pooled session may lack. Default: it is not called.
	Obeys func(ctx context.Context, conn driver.Conn, settings string) (has, asked string, err error)
	// Quoting returns the current quoting of conn's session, for a driver that learns of each
	// change. Default: the quoting from Greet.
	Quoting func(conn driver.Conn) sqltext.Quoting
	// Carried returns the settings of conn's session after query has changed them from
	// settings; false if an entry's settings cannot express the result. Default: false.
	Carried func(ctx context.Context, conn driver.Conn, settings, query string) (now, apply string, ok bool)
	// Reset returns the session of conn, outside of any transaction, to its state after the
	// dial. Prepared statements stay. Default: the connection is closed instead.
	Reset func(ctx context.Context, conn driver.Conn) error
	// TransactionLost reports whether err, from a statement inside a local transaction, ended
	// the whole transaction while the session stays usable, so that further statements would
	// autocommit. conn is free for a query. Default: false.
	TransactionLost func(ctx context.Context, conn driver.Conn, err error) bool
	// AfterImplicitCommit returns the state of the open transaction after err, the error of a
	// statement that commits implicitly. conn is free for a query. Default: Committed.
	AfterImplicitCommit func(ctx context.Context, conn driver.Conn, err error) TxState
	// Idle reports whether the server's last answer ruled out an open transaction on conn: conn
	// then stays usable after an error of COMMIT. Default: false, meaning unknown.
	Idle func(conn driver.Conn) bool
	// Interrupt makes any wait for an answer on conn fail, from another goroutine. It is for
	// COMMIT and ROLLBACK, for which driver.Tx takes no context; conn is closed afterwards.
	// Default: they are not interrupted.
	Interrupt func(conn driver.Conn)
	// Atomic runs calls as one local transaction in one round trip: all or none, stopping at
	// the first failure. handled false means that these calls on this server do not allow it,
	// and nothing was sent. There is one result for each call, with the affected rows and the
	// id of a separate execution. Default: never handled.
	Atomic func(ctx context.Context, conn driver.Conn, calls []Call) (results []driver.Result, handled bool, err error)
	// CommitWith runs calls inside the open local transaction of conn and commits it, in one
	// round trip; it does not run COMMIT after a failed call. handled is as for Atomic. After
	// an error the transaction may still be open. The error of a call with entries is an
	// EntriesError. Default: never handled.
	CommitWith func(ctx context.Context, conn driver.Conn, calls []Call) (handled bool, err error)
	// Peer is set for a data source that keeps receipts itself. Default: they are rows of
	// bed_receipt.
	Peer *Peer
	// Receipt returns the id of a unit's receipt. Default: the unit's own, so that receipts are
	// written side by side in the order of time.
	Receipt func(unitID string) string
	// ReceiptDuplicate reports whether err, a Duplicate, comes from the receipt id in
	// bed_receipt and not from a key of the application. Exactly-once delivery requires it.
	ReceiptDuplicate func(err error, id string) bool
	// ReceiptBusy reports whether err is a lock timeout, deadlock or serialization failure that
	// Atomic or CommitWith certainly met on bed_receipt. Default: false.
	ReceiptBusy func(err error) bool
	// Writable checks on conn, which is closed afterwards, for the ability to write now: the
	// server may be a standby. It returns nil, or an error with the reason. Default: a server
	// that answers counts as writable.
	Writable func(ctx context.Context, conn driver.Conn) error
	// ReadOnly reports whether err means that the server or session is currently read-only; the
	// write was not applied. Default: false.
	ReadOnly func(err error) bool
	// GeneratedIDs is set if a Result's nonzero LastInsertId after an INSERT is an id for use
	// in later statements.
	GeneratedIDs bool
}

// Peer asks a service that keeps receipts itself.
type Peer struct {
	// Scope returns the scope of its receipts, the place in an entry (entry.Unit.Place). Its error
	// says why what is sent there cannot be undone.
	Scope func(ctx context.Context, conn driver.Conn) (scope string, err error)
	// Within returns a context in which what is sent is meant for the scope alone.
	Within func(ctx context.Context, scope string) context.Context
	// Undo undoes a part of a group; see attempt.Undo. nothing means that there was nothing to undo,
	// and never will be.
	Undo func(ctx context.Context, conn driver.Conn, part *entry.Unit) (nothing bool, err error)
}

// Call is one statement of an attempt, in the driver's form.
type Call struct {
	SQL  string
	Args []driver.NamedValue
	// Prepared is set for a statement prepared by the application: every attempt must prepare
	// it. Atomic and CommitWith must not handle it if they cannot do so in one round trip.
	Prepared bool
	// Stmt is the statement already prepared on the connection; nil without one.
	Stmt driver.Stmt
	// Required is the required number of changed rows; otherwise a RowsError rolls back the
	// whole attempt. Atomic and CommitWith must not handle it if they cannot check it before
	// the COMMIT.
	Required entry.Requirement
	// Entries is a query for an entry that the call writes into the transaction log, without
	// parameters; empty for other calls.
	Entries string
	// Check is a query that must have a row before the call with entries runs; empty for none.
	// Without a row the call has changed none.
	Check string
}

// EntriesError is the error of a call with entries. COMMIT was not run after it.
type EntriesError struct{ Err error }

func (e *EntriesError) Error() string { return e.Err.Error() }

func (e *EntriesError) Unwrap() error { return e.Err }

// Facts are the properties of a session at its dial. They do not include later changes by
// the application or a pooler.
type Facts struct {
	// Quoting is how the session reads quotes.
	Quoting sqltext.Quoting
	// Session is the resolved session: its actual settings that affect values or places,
	// whether they come from the DSN, the account, the database or the server. The form is
	// "name=value;name=value", without settings at their usual value; empty if unknown. A write
	// means the same in two sessions with equal texts.
	Session string
	// Corrected names the server's settings that were changed for the session.
	Corrected string
	// Warning is a warning about the server's product; empty for the products that bed is
	// tested on.
	Warning string
}
