package postgres

import (
	"database/sql/driver"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// Register makes the wrapped driver available to [database/sql.Open] under name. The DSN is
// pgx's, with one more parameter, bedDataSource (see [Target]). It returns an error for an
// invalid cfg or a name that is taken.
func Register(name string, cfg bedsql.Config) error {
	return bedsql.RegisterDriver(name, Target, cfg)
}

// NewConnector wraps target for [database/sql.OpenDB]: a result of [Target] or [TargetOf],
// or a target with a Connector of pgx's database/sql driver and a DataSource. Such a
// connector does not reveal its time zone, search path and the like: the job compares them
// if target has Settings. With Account, the entries wait for a job of that account.
func NewConnector(target delivery.Target, cfg bedsql.Config) (driver.Connector, error) {
	if target.Dialect == nil {
		target.Dialect = dialectOf(target.Connector)
	}
	if _, ours := target.Connector.(*connector); !ours && target.Connector != nil {
		target.Connector = &connector{Connector: target.Connector}
	}
	return bedsql.NewConnector(target, cfg)
}

func init() {
	logdb.Register(name, logdb.Backend{
		Flavor:    sqltext.Postgres,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != dialect.Unknown },
		Location:  logLocation,
	})
}

func logConnector(dsn string, before logdb.Before) (driver.Connector, error) {
	t, err := hooked(dsn, before)
	return t.Connector, err
}

func logLocation(dsn string) (string, error) {
	cfg, _, _, err := readDSN(dsn)
	if err != nil {
		return "", err
	}
	return dataSource(&cfg.Config), nil
}
