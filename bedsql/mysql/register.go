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

// NewConnector wraps target for [database/sql.OpenDB]: one of [Target] or
// [TargetOf], or one with a Connector of go-sql-driver/mysql and a DataSource.
// What such a connector's configuration says of database, time zone, SQL mode and
// the like cannot be read from it: the job compares it where target has Settings.
func NewConnector(target delivery.Target, cfg bedsql.Config) (driver.Connector, error) {
	if target.Dialect == nil {
		target.Dialect = newDialect(nil)
	}
	return bedsql.NewConnector(target, cfg)
}
