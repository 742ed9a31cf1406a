package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite"

	"github.com/bedsql/bed/internal/attempt"
)

// writable makes a table and takes it back: BEGIN IMMEDIATE alone succeeds on a
// file that is read-only. A file that somebody else is writing to takes writes,
// and is not waited for.
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
	if busy(err) {
		return nil
	}
	return err
}

func busy(err error) bool {
	var server *sqlite.Error
	return errors.As(err, &server) && (server.Code()&0xff == 5 || server.Code()&0xff == 6) // SQLITE_BUSY, SQLITE_LOCKED
}

// isReadOnly reports whether err says that the file takes no writes.
func isReadOnly(err error) bool {
	var server *sqlite.Error
	return errors.As(err, &server) && server.Code()&0xff == 8 // SQLITE_READONLY
}
