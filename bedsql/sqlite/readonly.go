package sqlite

import (
	"context"
	"database/sql/driver"

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
	if code := primary(err); code == 5 || code == 6 { // SQLITE_BUSY, SQLITE_LOCKED
		return nil
	}
	return err
}

// isReadOnly reports whether err says that the file takes no writes.
func isReadOnly(err error) bool { return primary(err) == 8 } // SQLITE_READONLY
