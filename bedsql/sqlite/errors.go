package sqlite

import (
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/bedsql/bed/listener/delivery"
	"modernc.org/sqlite"
)

// Classify says what an error of the driver means for a write. The driver turns
// extended result codes on, so that the kind of a constraint is known.
func Classify(err error) delivery.Class {
	var server *sqlite.Error
	if errors.As(err, &server) {
		return classifyCode(server.Code())
	}
	if errors.Is(err, driver.ErrBadConn) {
		return delivery.Unreachable
	}
	for _, prefix := range argumentErrors {
		if strings.HasPrefix(err.Error(), prefix) {
			return delivery.Refused
		}
	}
	// The context's end: the driver returns its error also when the statement
	// was done a moment before it could be interrupted.
	return delivery.Unknown
}

// argumentErrors begin the texts of the errors that the driver (or
// database/sql) makes of arguments that do not fit. They have no type or value
// of their own.
var argumentErrors = []string{
	"missing argument with index ",
	"missing named argument ",
	"sqlite: invalid driver.Value type ",
	"unsupported type ",
	"non-Value type ",
	"uint64 values with high bit set are not supported",
	"sql: expected ",
	"sql: converting argument ",
}

// classifyCode looks an extended result code up, then its primary code. What
// neither lists is retryable: SQLite did answer.
func classifyCode(code int) delivery.Class {
	if c, ok := codes[code]; ok {
		return c
	}
	if c, ok := codes[code&0xff]; ok {
		return c
	}
	return delivery.Retryable
}

// codes is the table of result codes, extended ones where they mean something
// else than their primary code: https://www.sqlite.org/rescode.html
var codes = map[int]delivery.Class{
	1555: delivery.Duplicate, // SQLITE_CONSTRAINT_PRIMARYKEY
	2067: delivery.Duplicate, // SQLITE_CONSTRAINT_UNIQUE
	2579: delivery.Duplicate, // SQLITE_CONSTRAINT_ROWID

	1:  delivery.Refused, // SQLITE_ERROR (syntax, no such table …)
	18: delivery.Refused, // SQLITE_TOOBIG
	19: delivery.Refused, // SQLITE_CONSTRAINT
	20: delivery.Refused, // SQLITE_MISMATCH
	23: delivery.Refused, // SQLITE_AUTH
	25: delivery.Refused, // SQLITE_RANGE

	3:   delivery.Retryable, // SQLITE_PERM
	4:   delivery.Retryable, // SQLITE_ABORT
	5:   delivery.Retryable, // SQLITE_BUSY
	6:   delivery.Retryable, // SQLITE_LOCKED
	7:   delivery.Retryable, // SQLITE_NOMEM
	8:   delivery.Retryable, // SQLITE_READONLY (a file or file system that was made read-only)
	9:   delivery.Retryable, // SQLITE_INTERRUPT
	13:  delivery.Retryable, // SQLITE_FULL
	14:  delivery.Retryable, // SQLITE_CANTOPEN
	15:  delivery.Retryable, // SQLITE_PROTOCOL (too many writers raced for the lock)
	17:  delivery.Retryable, // SQLITE_SCHEMA
	257: delivery.Retryable, // SQLITE_ERROR_MISSING_COLLSEQ (registered per connection)
	513: delivery.Retryable, // SQLITE_ERROR_RETRY
	769: delivery.Retryable, // SQLITE_ERROR_SNAPSHOT

	10: delivery.Unknown, // SQLITE_IOERR (a failed sync: what is on the disk is not known)
}
