package delivery

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// TxState is what happened to a local transaction.
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
type Quoting = sqltext.Quoting

// The settings: MySQL's sql_mode NO_BACKSLASH_ESCAPES and ANSI_QUOTES, PostgreSQL's
// standard_conforming_strings = off.
const (
	BackslashIsPlain = sqltext.BackslashIsPlain
	QuotesAreNames   = sqltext.QuotesAreNames
	BackslashEscapes = sqltext.BackslashEscapes
)

// ModeQuoting is the quoting of MySQL's sql_mode.
func ModeQuoting(sqlMode string) (q Quoting) {
	for mode := range strings.SplitSeq(sqlMode, ",") {
		switch mode {
		case "NO_BACKSLASH_ESCAPES":
			q |= BackslashIsPlain
		case "ANSI_QUOTES":
			q |= QuotesAreNames
		}
	}
	return q
}

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
	// Mistake reports whether err, a refusal, is due to the statement, the schema or a
	// missing right, whatever the values: it is the service's own. Default: by SQLSTATE.
	Mistake func(err error) bool
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
	// Readable says why no attempt could read a statement with these parameters. Default:
	// the database is asked.
	Readable func(query string, args []driver.NamedValue) error
	// Storable turns a parameter that the driver would receive into one that
	// the log can keep and that means the same when it is replayed; an error
	// says why it cannot. Values that the log keeps as they are (see
	// txlog.EncodeParams) come back untouched; it is not asked about nil, a bool, an
	// int64, a float64, a string and bytes that are not nil. Default: as they are.
	Storable func(v any) (any, error)
	// Sendable returns the index and the error of an argument that the driver could
	// never send in the call's mode, whatever the server says. given are the
	// application's arguments, call.Args what Storable made of them; it is asked only
	// where Storable was. Default: all can be sent.
	Sendable func(given []driver.NamedValue, call Call) (int, error)
	// Greet asks a session that was just dialled what its settings are, and sets
	// those without which a write that is answered would not be committed. No
	// transaction is open there. Default: nothing is asked.
	Greet func(ctx context.Context, conn driver.Conn) (Facts, error)
	// Session asks the session of conn again what Greet gives as Facts.Session, with
	// all that like names. Adapt gives it those of the settings of want that it has
	// otherwise. Default: neither is known of any session.
	Session func(ctx context.Context, conn driver.Conn, like string) (string, error)
	Adapt   func(ctx context.Context, conn driver.Conn, has, want string) error
	// Pooled reports whether each transaction on conn may meet another session of
	// the server, so that nothing can be set there. Default: false.
	Pooled func(conn driver.Conn) bool
	// Obeys asks the session of conn what Greet gives as Facts.Session, and what it
	// would give if the session had the settings of a Target, which it need not have
	// where it is Pooled. Default: it is not asked.
	Obeys func(ctx context.Context, conn driver.Conn, settings string) (has, asked string, err error)
	// Quoting is how the session of conn reads quotes now, for a database whose
	// driver hears of each change. Default: as it did when it was greeted.
	Quoting func(conn driver.Conn) Quoting
	// Carried gives the settings of the session of conn after query, which changed
	// them from settings; false if query left behind what an entry's settings cannot
	// say. Default: false.
	Carried func(ctx context.Context, conn driver.Conn, settings, query string) (now, apply string, ok bool)
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
	// Interrupt has whatever waits for an answer on conn fail, from another goroutine.
	// It is for COMMIT and ROLLBACK where driver.Tx cannot be given a context; conn is
	// closed afterwards. Default: they are not interrupted.
	Interrupt func(conn driver.Conn)
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
	// in bed_receipt and not one of the application's own. Without it nothing can be
	// delivered exactly once.
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

// Call is one statement of an attempt, as the driver takes it.
type Call struct {
	SQL  string
	Args []driver.NamedValue
	// Prepared: the application prepared it, so that every attempt has to. What
	// cannot send it so in one round trip must not handle it.
	Prepared bool
	// Stmt is it, where it is prepared on the connection already; nil if not.
	Stmt driver.Stmt
	// Required is how many rows it must change, else a RowsError rolls back what it
	// is part of. What cannot see to it before the COMMIT must not handle it.
	Required txlog.Requirement
}

// Facts are what a session said of itself when it was dialled. What it heard
// to be since, by the application or a pooler, they do not say.
type Facts struct {
	// Quoting is how it reads what stands between quotes.
	Quoting Quoting
	// Session is what it resolves to: the settings that it has in fact and that
	// change values or places, whether they come from the DSN, the account, the
	// database or the server; as "name=value;name=value", without those that have
	// their usual value. Empty if that is not known. Of two sessions with the same,
	// a write means the same.
	Session string
	// Corrected names the server's settings that were set otherwise for it.
	Corrected string
	// Warning is what is to be known of the server's product; empty for those that
	// bed is tested on.
	Warning string
}
