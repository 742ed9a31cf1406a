package postgres

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/listener/delivery"
)

// greet implements Dialect.Greet without a round trip: servers that speak
// PostgreSQL's protocol say what they are when they are dialled.
func greet(_ context.Context, conn driver.Conn) (delivery.Facts, error) {
	std := stdlibConn(conn)
	if std == nil {
		return delivery.Facts{}, nil
	}
	return delivery.Facts{Warning: warning(std.Conn().PgConn().ParameterStatus)}, nil
}

// warning is what needs to be known of the product that reports these parameters.
func warning(parameter func(string) string) string {
	if parameter("crdb_version") != "" {
		return dbserver.Untested("CockroachDB")
	}
	return dbserver.Untested(dbserver.PostgresProduct(parameter("server_version")))
}
