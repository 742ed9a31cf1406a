package mysql

import (
	"database/sql/driver"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/listener/delivery"
)

// Register makes the wrapped driver available to [database/sql.Open] under
// name. The DSN is go-sql-driver's, with one more parameter, bedDataSource (see
// [Target]). An error when cfg is not valid or name is taken.
func Register(name string, cfg bedsql.Config) error {
	return bedsql.RegisterDriver(name, Target, cfg)
}

// NewConnector wraps a connector of go-sql-driver/mysql, for example one of
// mysql.NewConnector, for [database/sql.OpenDB]. dataSource is its name in the
// log. What the connector's configuration says of time zone, SQL mode and the
// like cannot be read from it: give it by bedsql.WithTarget, with
// the Settings of [TargetOf], for the job to compare.
func NewConnector(c driver.Connector, dataSource string, cfg bedsql.Config, opts ...bedsql.Option) (driver.Connector, error) {
	return bedsql.NewConnector(c, dataSource, cfg, append([]bedsql.Option{bedsql.WithTarget(delivery.Target{Dialect: newDialect()})}, opts...)...)
}
