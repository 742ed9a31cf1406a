package postgres

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// stdlibConn returns pgx's own connection in conn, behind a pooler too; nil for another
// driver.
func stdlibConn(conn driver.Conn) *stdlib.Conn {
	switch c := attempt.Bare(conn).(type) {
	case *pooled:
		return c.Conn
	case *borrowed:
		return c.Conn
	case *stdlib.Conn:
		return c
	}
	return nil
}

// writable reads the mode of a new transaction: it is read-only on a standby, and with
// default_transaction_read_only on.
func writable(ctx context.Context, conn driver.Conn) error {
	std := stdlibConn(conn)
	if std == nil {
		return nil
	}
	results, err := std.Conn().PgConn().Exec(ctx, "SHOW transaction_read_only").ReadAll()
	switch {
	case err != nil && classify(err) == dialect.Refused:
		return nil // not quite PostgreSQL
	case err != nil:
		return err
	case len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == "on":
		return errors.New("it takes no writes: transaction_read_only is on (a standby, or default_transaction_read_only)")
	}
	return nil
}

// isReadOnly reports whether err means that this server or session is read-only.
func isReadOnly(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && codes.Outage(names(server.Code)...)
}
