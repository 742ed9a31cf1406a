package delivery

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// TxState is what became of a local transaction.
type TxState uint8

const (
	// Committed: it is committed.
	Committed TxState = iota
	// StillOpen: it is as before.
	StillOpen
	// InDoubt: it may be committed or rolled back.
	InDoubt
)

// Quoting is how a session reads what stands between quotes, where that is a
// setting of the server's. The zero value is the default of each database.
type Quoting uint8

const (
	// BackslashIsPlain is MySQL's sql_mode NO_BACKSLASH_ESCAPES.
	BackslashIsPlain = Quoting(sqltext.BackslashIsPlain)
	// QuotesAreNames is MySQL's sql_mode ANSI_QUOTES: "a" is a name.
	QuotesAreNames = Quoting(sqltext.QuotesAreNames)
	// BackslashEscapes is PostgreSQL's standard_conforming_strings = off.
	BackslashEscapes = Quoting(sqltext.BackslashEscapes)
)

// Dialect is what bed knows about one kind of database. It is immutable and
// safe for concurrent use. Nil functions have the default their comment says.
type Dialect struct {
	// Name is the kind's name in configurations: "mysql", "postgres", "sqlite".
	Name string
	// Flavor is how its SQL text is read.
	Flavor txlog.Flavor
	// Classify says what err (not nil, as the driver returned it) means for a
	// statement that was handed to a live connection. Default: by SQLSTATE
	// when the error carries one, else Unknown.
	Classify func(err error) Class
	// Undecoded reports whether err, of a row of rows that could then be closed
	// without an error, was made by the driver of what the server had sent: the
	// statement was carried out. Default: false.
	Undecoded func(err error) bool
	// PreparedByText: while a prepared statement is open, the driver sends each
	// text that is the same as prepared, too.
	PreparedByText bool
	// Reusable gives the statement to use for st, which was prepared from query on
	// conn and is run as often as the application likes. Default: st.
	Reusable func(conn driver.Conn, query string, st driver.Stmt) driver.Stmt
	// CheckNamedValue is the driver's own parameter check, for a connection
	// that has not been dialled. Default: driver.ErrSkip (the default converter).
	CheckNamedValue func(*driver.NamedValue) error
	// Named reports whether the driver reads @name in a text that comes with args as
	// a parameter. Default: as the database does.
	Named func(args []driver.NamedValue) bool
	// Storable turns a parameter that the driver would receive into one that
	// the log can keep and that means the same when it is replayed; an error
	// says why it cannot. Values that the log keeps as they are (see
	// txlog.EncodeParams) come back untouched; it is not asked about nil, a bool, an
	// int64, a float64, a string and bytes that are not nil. Default: as they are.
	Storable func(v any) (any, error)
	// Greet asks a session that was just dialled what its settings are, and sets
	// those without which a write that is answered would not be committed. No
	// transaction is open there. Default: nothing is asked.
	Greet func(ctx context.Context, conn driver.Conn) (Facts, error)
	// Quoting is how the session of conn reads quotes now, for a database whose
	// driver is told of each change. Default: as it did when it was greeted.
	Quoting func(conn driver.Conn) Quoting
	// Setting asks the session of conn for one of its settings, by its name in
	// lower case. Default: what was set is never seen to be put back.
	Setting func(ctx context.Context, conn driver.Conn, name string) (string, error)
	// Reset gives the session of conn, which is in no transaction, the state with
	// which it was dialled. Statements that were prepared stay. Default: it cannot
	// be done, the connection is closed instead.
	Reset func(ctx context.Context, conn driver.Conn) error
	// TransactionLost reports whether the error err of a statement inside a
	// local transaction took the whole transaction with it while the session
	// stays usable, so that what follows would autocommit. conn is free for a
	// query. Default: false.
	TransactionLost func(ctx context.Context, conn driver.Conn, err error) bool
	// AfterImplicitCommit says what the error err of a statement that commits the
	// open transaction on its way means for that transaction. conn is free for a
	// query. Default: Committed.
	AfterImplicitCommit func(ctx context.Context, conn driver.Conn, err error) TxState
	// Idle reports whether the server has said with its last answer that no
	// transaction is open on conn, so that it goes on after an error of COMMIT.
	// Default: false, it is not known.
	Idle func(conn driver.Conn) bool
	// Atomic runs calls as one local transaction in one round trip: all or
	// none, and nothing after the first that fails. handled false means that
	// it cannot be done so for these calls on this server, and nothing was
	// sent. Results are one for each call, with the rows affected and the id
	// that each would have had on its own. Default: never handled.
	Atomic func(ctx context.Context, conn driver.Conn, calls []Call) (results []driver.Result, handled bool, err error)
	// CommitWith runs calls inside the local transaction that is open on conn
	// and commits it, in one round trip; COMMIT is not run if one of them
	// fails. handled is as for Atomic. After an error the transaction may
	// still be open. Default: never handled.
	CommitWith func(ctx context.Context, conn driver.Conn, calls []Call) (handled bool, err error)
	// Receipt makes the id of a unit's receipt. Default: the unit's own, so that
	// receipts are written side by side in the order of time.
	Receipt func(unitID string) string
	// ReceiptDuplicate reports whether err, a Duplicate, is that of the receipt id
	// in bed_receipt and not one of the application's own. Default: false, with which
	// nothing can be delivered exactly once: a retry that meets its own receipt would
	// be taken for refused.
	ReceiptDuplicate func(err error, id string) bool
	// ReceiptBusy reports whether err is a lock timeout, deadlock or
	// serialization failure that is known to have been met on bed_receipt by
	// Atomic or CommitWith. Default: false.
	ReceiptBusy func(err error) bool
	// Writable asks on conn, which is closed afterwards, whether a write would be
	// taken at this moment: a server that answers may be a standby. It returns nil if
	// so, else an error that says why not. Default: a server that answers is taken to
	// be writable.
	Writable func(ctx context.Context, conn driver.Conn) error
	// ReadOnly reports whether err, of a write, says that the server or its
	// session takes no writes at the moment; it was not applied. Default: false.
	ReadOnly func(err error) bool
	// GeneratedIDs is whether a Result's nonzero LastInsertId after an INSERT
	// is an id that a later statement could carry.
	GeneratedIDs bool
}

// ReceiptID is the id of the receipt of a unit that has no caller's key.
func (d *Dialect) ReceiptID(unitID string) string {
	if d.Receipt == nil {
		return unitID
	}
	return d.Receipt(unitID)
}

// Store turns args into what the log keeps: see Storable. args itself is
// left as it is; it is returned when nothing had to change.
func (d *Dialect) Store(args []driver.NamedValue) ([]driver.NamedValue, error) {
	if d.Storable == nil {
		return args, nil
	}
	out, copied := args, false
	for i := range args {
		switch v := args[i].Value.(type) {
		case nil, bool, int64, float64, string:
			continue
		case []byte:
			if v != nil {
				continue
			}
		}
		v, err := d.Storable(args[i].Value)
		if err != nil {
			return nil, &txlog.ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: fmt.Sprintf("%T", args[i].Value), Err: err}
		}
		if !copied {
			out, copied = slices.Clone(args), true
		}
		out[i].Value = v
	}
	return out, nil
}

// Call is one statement of an attempt, as the driver takes it.
type Call struct {
	SQL  string
	Args []driver.NamedValue
	// Fixed is how many of the last arguments are the same, as a rule, each
	// time that SQL is run.
	Fixed int
	// Prepared: the application prepared it, so that every attempt has to. What
	// cannot send it so in one round trip must not handle it.
	Prepared bool
	// Stmt is it, where it is prepared on the connection already; nil if not.
	Stmt driver.Stmt
}

// Facts are what a session said of itself when it was dialled. What it was told
// to be since, by the application or a pooler, they do not say.
type Facts struct {
	// Quoting is how it reads what stands between quotes.
	Quoting Quoting
	// Corrected names the server's settings that were set otherwise for it.
	Corrected string
	// Warning is what is to be known of the server's product; empty for those that
	// bed is tested on.
	Warning string
}
