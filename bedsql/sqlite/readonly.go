package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/attempt"
)

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
