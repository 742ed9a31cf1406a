package sqltext

// Flavor is the SQL dialect of a database: its comments, quotes and keywords.
type Flavor uint8

// The flavors. ANSI has standard quoting and keywords only. MySQL includes MariaDB. The others are
// no SQL: each text is a prefix and a name. For a message broker that is [Publish] and a topic,
// for an HTTP service [Call], a method and a path.
const (
	ANSI Flavor = iota
	MySQL
	Postgres
	SQLite
	Messages
	Calls
)

// IsSQL reports whether the texts of f are SQL. A data source of another flavor has neither local
// transactions nor receipts, and each of its writes is a unit of its own.
func (f Flavor) IsSQL() bool { return f < Messages }

// String returns the database's name in configurations.
func (f Flavor) String() string {
	if f == ANSI || f > SQLite {
		return "unknown"
	}
	return f.Pick(Texts{MySQL: "mysql", Postgres: "postgres", SQLite: "sqlite"})
}

// FlavorOf returns the flavor of a database's name in configurations; ANSI for an unknown
// name.
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

// Quoting is how a session reads quotes, where that is a setting of the server. The zero
// value is the default of each database.
type Quoting uint8

const (
	// BackslashIsPlain is MySQL's sql_mode NO_BACKSLASH_ESCAPES.
	BackslashIsPlain Quoting = 1 << iota
	// QuotesAreNames is MySQL's sql_mode ANSI_QUOTES: "a" is a name.
	QuotesAreNames
	// BackslashEscapes is PostgreSQL's standard_conforming_strings = off.
	BackslashEscapes
)

// Kind is the meaning of a statement for delivery.
type Kind uint8

const (
	// Read is a query that changes nothing (SELECT, SHOW, plain EXPLAIN, a reading PRAGMA …),
	// including SELECT … FOR UPDATE.
	Read Kind = iota
	// DML is a write that is logged and delivered.
	DML
	// DDL defines or administers (CREATE, ALTER, TRUNCATE, GRANT …).
	DDL
	// Session affects the meaning or view of later statements in the same session. With Pins
	// the effect lasts for the rest of the session. Else it lasts at most for the rest of the
	// transaction (PostgreSQL's SET LOCAL, SET CONSTRAINTS and LOCK, SET TRANSACTION), or does
	// not touch the session at all (SET GLOBAL). In a local transaction with a Session without
	// Pins, the DML alone may have another meaning on a second run.
	Session
	// Control begins a transaction or commits one as a statement: BEGIN, COMMIT, PostgreSQL's
	// PREPARE TRANSACTION, MySQL's SET autocommit.
	Control
	Rollback
	// Savepoint begins a transaction in SQLite if none is open.
	Savepoint
	RollbackTo
	ReleaseSavepoint
	// Multi is several statements in one text.
	Multi
	// Opaque is any other statement, with an unknown effect: CALL, DO, LOAD DATA, COPY, a
	// compound block, an unknown word, or a text other than DML with an unterminated quote or
	// comment.
	Opaque
	// Empty is a text without a statement.
	Empty
)

var kindNames = [...]string{
	Read: "read", DML: "DML", DDL: "DDL", Session: "session state",
	Control: "transaction control", Rollback: "rollback",
	Savepoint: "savepoint", RollbackTo: "rollback to savepoint", ReleaseSavepoint: "release savepoint",
	Multi: "several statements", Opaque: "opaque", Empty: "empty",
}

// String returns the kind's name for messages.
func (k Kind) String() string { return kindNames[k] }

// Class is the result of classifying a text. It is comparable.
type Class struct {
	Kind Kind
	// Insert is set if a DML may generate an id (INSERT, REPLACE, MERGE).
	Insert bool
	// Name is the savepoint's name, folded as the database folds it, but without MySQL's
	// folding of accents (é and e are one name to it).
	Name string
	// ImplicitCommit is set if running it first commits the open transaction (MySQL's DDL, LOCK
	// TABLES, a BEGIN within a transaction …). A later failure does not undo the commit, unless
	// the server could not parse the text.
	ImplicitCommit bool
	// Pins is set if the text also leaves state behind in the session, invisible on another
	// connection. For a Multi: one of its statements pins, is transaction control, or is not
	// plainly a read, DML or DDL.
	Pins bool
	// NeedsSession is set for DML that depends on this very connection: it reads or leaves
	// session state (user variables, the last generated id, user locks, a cursor). It must not
	// be logged and run elsewhere.
	NeedsSession bool
	// Locks is set if a Read of MySQL locks its rows (FOR UPDATE, LOCK IN SHARE MODE …), so
	// that it can be the victim of a deadlock.
	Locks bool
	// Moves is set if it calls a function that changes a setting for the rest of the
	// transaction, as SET LOCAL does.
	Moves bool
	// HasDML is set for a Multi with a DML.
	HasDML bool
	// ByQuoting is set if a session with another [Quoting] reads it differently; a [Cache] sets
	// it.
	ByQuoting bool
	// Hazards are the ways in which a second run of a DML may have another effect.
	Hazards Hazards
}
