package sqlite

import (
	"database/sql/driver"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/listener/delivery"
)

// Register makes the wrapped driver available to [database/sql.Open] under
// name. The DSN is modernc.org/sqlite's, with one more parameter, bedDataSource
// (see [Target]). An error when cfg is not valid or name is taken.
func Register(name string, cfg bedsql.Config) error {
	return bedsql.RegisterDriver(name, Target, cfg)
}

// NewConnector wraps a connector of modernc.org/sqlite for
// [database/sql.OpenDB]. dataSource is its name in the log. What the connector's
// DSN says of how times are written cannot be read from it: give it by
// bedsql.WithTarget, with the Settings of [Target], for the job to compare.
// That of a database in memory must be opened by [Register] instead, which
// knows that it has no second connection.
func NewConnector(c driver.Connector, dataSource string, cfg bedsql.Config, opts ...bedsql.Option) (driver.Connector, error) {
	return bedsql.NewConnector(c, dataSource, cfg, append([]bedsql.Option{bedsql.WithTarget(delivery.Target{Dialect: dialect})}, opts...)...)
}
