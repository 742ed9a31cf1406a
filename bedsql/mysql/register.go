package mysql

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// Register makes the wrapped driver available to [database/sql.Open] under name. The DSN is
// go-sql-driver's, with one more parameter, bedDataSource (see [Target]). It returns an
// error for an invalid cfg or a name that is taken.
func Register(name string, cfg bedsql.Config) error {
	return bedsql.RegisterDriver(name, Target, cfg)
}

// NewConnector wraps target for [database/sql.OpenDB]: a result of [Target] or [TargetOf],
// or a target with a Connector of go-sql-driver/mysql and a DataSource. Such a connector
// does not reveal its database, time zone, SQL mode and the like: the job compares them if
// target has Settings.
func NewConnector(target delivery.Target, cfg bedsql.Config) (driver.Connector, error) {
	if target.Dialect == nil {
		target.Dialect = newDialect(nil)
	}
	return bedsql.NewConnector(target, cfg)
}

func init() {
	logdb.Register(name, logdb.Backend{
		Flavor:    sqltext.MySQL,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != dialect.Unknown },
		Location:  logLocation,
	})
}

func logConnector(dsn string, before logdb.Before) (driver.Connector, error) {
	cfg, _, err := readDSN(dsn)
	if err != nil {
		return nil, err
	}
	if before != nil {
		if err := cfg.Apply(mysql.BeforeConnect(func(ctx context.Context, c *mysql.Config) error { return before(ctx, c) })); err != nil {
			return nil, err
		}
	}
	// A matched row is a held lease, even if the update writes the same millisecond again.
	cfg.ClientFoundRows = true
	cfg.Logger = &mysql.NopLogger{}
	return mysql.NewConnector(cfg)
}

func logLocation(dsn string) (string, error) {
	cfg, _, err := readDSN(dsn)
	if err != nil {
		return "", err
	}
	return dataSource(cfg), nil
}
