package mysql

import (
	"database/sql/driver"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
	"github.com/go-sql-driver/mysql"
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

func init() {
	txlog.RegisterBackend(name, txlog.Backend{
		Flavor:    txlog.FlavorMySQL,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != delivery.Unknown },
		Location:  logLocation,
	})
}

func logConnector(dsn string) (driver.Connector, error) {
	cfg, _, err := readDSN(dsn)
	if err != nil {
		return nil, err
	}
	// A row that is found is a lease that is held, even if the same millisecond
	// is written into it again.
	cfg.ClientFoundRows = true
	cfg.Logger = new(driverLog)
	return mysql.NewConnector(cfg)
}

func logLocation(dsn string) (string, error) {
	cfg, _, err := readDSN(dsn)
	if err != nil {
		return "", err
	}
	return dataSource(cfg), nil
}
