package sqlite

import (
	"context"
	"database/sql/driver"
	_ "embed" // errors.txt
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"modernc.org/sqlite"
)

// classify returns the class of a driver's error for a write. The driver turns extended
// result codes on, which tell the kind of a constraint.
func classify(err error) dialect.Class {
	var server *sqlite.Error
	if errors.As(err, &server) {
		return meaning(server.Code()).Class
	}
	if errors.Is(err, driver.ErrBadConn) {
		return dialect.Unreachable
	}
	if dialects.BeginsWith(err, argumentErrors) {
		return dialect.Refused
	}
	// The context ended: the driver returns its error even if the statement had finished just
	// before the interrupt.
	return dialect.Unknown
}

// argumentErrors are the beginnings of the driver's (or database/sql's) errors about
// unsuitable arguments. These errors have no type or value of their own.
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

//go:embed errors.txt
var codeList string

var codes = dialects.ReadCodes(codeList)

// primary returns the primary result code of an error; 0 without one.
func primary(err error) int {
	var server *sqlite.Error
	if errors.As(err, &server) {
		return server.Code() & 0xff
	}
	return 0
}

// meaning looks up an extended result code, then its primary code.
func meaning(code int) dialects.Meaning {
	return codes.Of(strconv.Itoa(code), strconv.Itoa(code&0xff))
}

// isMistake reads the text too: functions also report a bad value as SQLITE_ERROR.
func isMistake(err error) bool {
	var server *sqlite.Error
	return errors.As(err, &server) && (meaning(server.Code()).Mistake ||
		server.Code() == 1 && slices.ContainsFunc(mistakes, func(part string) bool { return strings.Contains(server.Error(), part) }))
}

// mistakes are parts of SQLITE_ERROR's texts for statements and schemas.
var mistakes = []string{
	": no such ", " syntax error", "incomplete input", "unrecognized token", "has no column named", " columns but ", "ambiguous column name",
	"wrong number of arguments to function", "may not be modified", "cannot modify ", " values for ",
}

// isReceiptDuplicate reports whether err comes from the receipts' key. SQLite names the
// columns of a constraint only: "UNIQUE constraint failed: bed_receipt.id (1555)".
func isReceiptDuplicate(err error, _ string) bool {
	const (
		primaryKey = 1555 // SQLITE_CONSTRAINT_PRIMARYKEY
		unique     = 2067 // SQLITE_CONSTRAINT_UNIQUE, of tables as they were made before
	)
	var server *sqlite.Error
	if !errors.As(err, &server) || server.Code() != primaryKey && server.Code() != unique {
		return false
	}
	_, columns, ok := strings.Cut(server.Error(), "UNIQUE constraint failed: ")
	columns, _, _ = strings.Cut(columns, " (")
	return ok && columns == "bed_receipt.id"
}

// writable creates a table and rolls back: BEGIN IMMEDIATE alone succeeds on a read-only
// file. A file locked by another writer is writable, and writable does not wait for the
// lock.
func writable(ctx context.Context, conn driver.Conn) error {
	if _, _, err := attempt.Exec(ctx, conn, "PRAGMA busy_timeout = 0", nil); err != nil {
		return err
	}
	_, _, err := attempt.Exec(ctx, conn, "BEGIN IMMEDIATE", nil)
	if err == nil {
		_, _, err = attempt.Exec(ctx, conn, "CREATE TABLE bed_probe (id)", nil)
		if _, _, rerr := attempt.Exec(context.WithoutCancel(ctx), conn, "ROLLBACK", nil); err == nil {
			err = rerr
		}
	}
	if code := primary(err); code == 5 || code == 6 { // SQLITE_BUSY, SQLITE_LOCKED
		return nil
	}
	return err
}

// isReadOnly reports whether err means a read-only file.
func isReadOnly(err error) bool { return primary(err) == 8 } // SQLITE_READONLY
