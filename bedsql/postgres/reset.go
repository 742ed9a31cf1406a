package postgres

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
)

// resets are what DISCARD ALL does, except for DEALLOCATE ALL: pgx and
// database/sql count on their prepared statements.
const resets = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; " +
	"SELECT pg_advisory_unlock_all(); DISCARD PLANS; DISCARD TEMP; DISCARD SEQUENCES"

var (
	errNotPgx = errors.New("bed: it is not a pgx connection")
	errPooled = errors.New("bed: behind a pooler a reset would also take away what the DSN sets")
)

// reset implements Dialect.Reset, in one round trip.
func reset(ctx context.Context, conn driver.Conn) error {
	if _, ok := attempt.Bare(conn).(*pooled); ok {
		return errPooled
	}
	std := stdlibConn(conn)
	if std == nil {
		return errNotPgx
	}
	_, err := std.Conn().PgConn().Exec(ctx, resets).ReadAll()
	return err
}
