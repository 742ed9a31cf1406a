package postgres

import (
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func init() {
	txlog.RegisterBackend(name, txlog.Backend{
		Flavor:    txlog.FlavorPostgres,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != delivery.Unknown },
		Location:  logLocation,
	})
}

func logConnector(dsn string) (driver.Connector, error) {
	t, err := Target(dsn)
	return t.Connector, err
}

func logLocation(dsn string) (string, error) {
	cfg, _, _, err := readDSN(dsn)
	if err != nil {
		return "", err
	}
	return dataSource(&cfg.Config), nil
}
