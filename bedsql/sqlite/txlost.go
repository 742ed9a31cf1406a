package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"modernc.org/sqlite"
)

// transactionLost reports whether err made SQLite roll back the whole transaction. A full
// disk, an I/O error, lack of memory, an interrupt and a failed lock do so only sometimes; a
// constraint declared ON CONFLICT ROLLBACK does. The session is then in autocommit mode. The
// result code does not tell, so transactionLost runs BEGIN. Within a transaction BEGIN fails
// without effect. Outside it begins one without a lock, which is ended at once.
func transactionLost(ctx context.Context, conn driver.Conn, err error) bool {
	var server *sqlite.Error
	if err == nil || errors.As(err, &server) && !mayRollBack(server.Code()) {
		return false
	}
	execer, ok := attempt.Bare(conn).(driver.ExecerContext)
	if !ok {
		return true
	}
	// The caller's context may have interrupted the statement.
	ctx = context.WithoutCancel(ctx)
	_, begin := execer.ExecContext(ctx, "BEGIN", nil)
	if begin != nil {
		// After any other failure the state is unknown: make no further writes in this session.
		return !strings.Contains(begin.Error(), "within a transaction")
	}
	_, _ = execer.ExecContext(ctx, "ROLLBACK", nil)
	return true
}

// mayRollBack returns the primary codes that need the check.
// https://www.sqlite.org/lang_transaction.html#response_to_errors_within_a_transaction
func mayRollBack(code int) bool {
	switch code & 0xff {
	case 1, // SQLITE_ERROR: RAISE(ROLLBACK) of a trigger has been this code
		4,  // SQLITE_ABORT
		5,  // SQLITE_BUSY
		7,  // SQLITE_NOMEM
		9,  // SQLITE_INTERRUPT
		10, // SQLITE_IOERR
		11, // SQLITE_CORRUPT
		13, // SQLITE_FULL
		14, // SQLITE_CANTOPEN
		19: // SQLITE_CONSTRAINT, ON CONFLICT ROLLBACK
		return true
	}
	return false
}
