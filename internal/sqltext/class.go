package sqltext

// Flavor is how a database's SQL text is read: its comments, quotes and keywords.
type Flavor uint8

// The flavors. ANSI knows standard quoting and keywords only. MySQL is also
// MariaDB. Messages is that of a message broker: each text is [Publish] and a topic.
const (
	ANSI Flavor = iota
	MySQL
	Postgres
	SQLite
	Messages
)

// Publish begins the text of a message.
const Publish = "PUBLISH "

// PublishKey is the name of the parameter that is a message's order key.
const PublishKey = "key"

// String gives the database's name in configurations.
func (f Flavor) String() string {
	if f == ANSI || f > SQLite {
		return "unknown"
	}
	return f.Pick(Texts{MySQL: "mysql", Postgres: "postgres", SQLite: "sqlite"})
}

// FlavorOf gives the flavor of the database that configurations call name; ANSI if there is none.
func FlavorOf(name string) Flavor {
	switch name {
	case "mysql", "mariadb":
		return MySQL
	case "postgres", "pgx", "postgresql":
		return Postgres
	case "sqlite", "sqlite3":
		return SQLite
	}
	return ANSI
}

// Quoting is how a session reads what stands between quotes, where that is a
// setting of the server's. The zero value is the default of each database.
type Quoting uint8

const (
	// BackslashIsPlain is MySQL's sql_mode NO_BACKSLASH_ESCAPES.
	BackslashIsPlain Quoting = 1 << iota
	// QuotesAreNames is MySQL's sql_mode ANSI_QUOTES: "a" is a name.
	QuotesAreNames
	// BackslashEscapes is PostgreSQL's standard_conforming_strings = off.
	BackslashEscapes
)

// Kind is what running a statement means for delivery.
type Kind uint8

const (
	// Read: a query that changes nothing (SELECT, SHOW, plain EXPLAIN, a reading
	// PRAGMA …), SELECT … FOR UPDATE included.
	Read Kind = iota
	// DML is a write that is logged and delivered.
	DML
	// DDL defines or administers (CREATE, ALTER, TRUNCATE, GRANT …).
	DDL
	// Session changes what later statements of the same session mean or see:
	// for the rest of the session with Pins, else at most for the rest of the
	// transaction (PostgreSQL's SET LOCAL, SET CONSTRAINTS and LOCK, SET
	// TRANSACTION) or not for the session at all (SET GLOBAL). A local
	// transaction that holds one without Pins means something else when its
	// DML is run again alone.
	Session
	// Begin, Commit, Rollback, Savepoint, RollbackTo, ReleaseSavepoint are
	// transaction control sent as text. In SQLite a Savepoint outside a
	// transaction begins one, and releasing that one commits it.
	Begin
	Commit
	Rollback
	Savepoint
	RollbackTo
	ReleaseSavepoint
	// PrepareTransaction is PostgreSQL's: the session's transaction ends, what
	// becomes of it is decided elsewhere.
	PrepareTransaction
	// AutocommitOff and AutocommitOn are MySQL's SET autocommit to a constant.
	// Set to anything else it is Session with Pins: its value is not known.
	AutocommitOff
	AutocommitOn
	// Multi is several statements in one text.
	Multi
	// Opaque is anything else whose effect is not known: CALL, DO, LOAD DATA,
	// COPY, a compound block, an unknown word, a text that is not DML and whose
	// quotes or comments do not end.
	Opaque
	// Empty is a text without a statement.
	Empty
)

var kindNames = [...]string{
	Read: "read", DML: "DML", DDL: "DDL", Session: "session state",
	Begin: "begin", Commit: "commit", Rollback: "rollback",
	Savepoint: "savepoint", RollbackTo: "rollback to savepoint", ReleaseSavepoint: "release savepoint",
	PrepareTransaction: "prepare transaction",
	AutocommitOff:      "autocommit off", AutocommitOn: "autocommit on",
	Multi: "several statements", Opaque: "opaque", Empty: "empty",
}

// String names the kind for messages.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Class is what a text was read as. It is comparable.
type Class struct {
	Kind Kind
	// Insert is whether a DML may generate an id (INSERT, REPLACE, MERGE).
	Insert bool
	// Name is the savepoint's, folded as the database folds it. MySQL's folding
	// of accents (é and e are one name to it) is not done.
	Name string
	// ImplicitCommit: running it commits the open transaction first (MySQL's
	// DDL, LOCK TABLES, a BEGIN within a transaction …). It does so also when
	// it fails afterwards, unless the server could not parse it. An
	// AutocommitOn commits only if autocommit was off before.
	ImplicitCommit bool
	// Chain: a Commit or Rollback that begins the next transaction at once.
	Chain bool
	// Pins: besides its Kind, the text leaves state behind in the session that
	// a statement on another connection would not see. For a Multi: one of its
	// statements pins, is transaction control, or is not plainly a read, DML
	// or DDL.
	Pins bool
	// NeedsSession is for DML that only means the same on this very
	// connection: it reads or leaves session state (user variables, the last
	// generated id, user locks, a cursor). It must not be logged and run
	// elsewhere.
	NeedsSession bool
	// Locks is whether a Read of MySQL's locks the rows that it reads (FOR
	// UPDATE, LOCK IN SHARE MODE …), so that it can be the victim of a deadlock.
	Locks bool
	// Moves is whether it calls a function that changes a setting for the rest of
	// the transaction, as SET LOCAL does.
	Moves bool
	// HasDML is whether a Multi holds a DML.
	HasDML bool
	// ByQuoting is whether a session with another [Quoting] reads it differently;
	// it is set by a [Cache].
	ByQuoting bool
	// Hazards are what makes a DML mean something else when it runs again.
	Hazards Hazards
}
