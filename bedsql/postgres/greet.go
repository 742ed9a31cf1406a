package postgres

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/listener/delivery"
)

// resolvedKey is where a connection keeps what was learnt when it was dialled.
const resolvedKey = "github.com/bedsql/bed/resolved"

// greet implements Dialect.Greet without a round trip, if the connector is ours:
// servers that speak PostgreSQL's protocol say what they are when they are
// dialled.
func greet(ctx context.Context, conn driver.Conn) (delivery.Facts, error) {
	std := stdlibConn(conn)
	if std == nil {
		return delivery.Facts{}, nil
	}
	pg := std.Conn().PgConn()
	text, known := pg.CustomData()[resolvedKey].(string)
	if !known {
		has, err := resolve(ctx, pg, nil)
		if err != nil {
			return delivery.Facts{}, err
		}
		text = has.text
	}
	return delivery.Facts{Session: text, Warning: warning(pg.ParameterStatus)}, nil
}

// isPooled implements Dialect.Pooled.
func isPooled(conn driver.Conn) bool {
	_, ok := attempt.Bare(conn).(*pooled)
	return ok
}

// warning is what needs to be known of the product that reports these parameters.
func warning(parameter func(string) string) string {
	if parameter("crdb_version") != "" {
		return dbserver.Untested("CockroachDB")
	}
	return dbserver.Untested(dbserver.PostgresProduct(parameter("server_version")))
}
