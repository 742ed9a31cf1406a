package mysql

import (
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
	"github.com/go-sql-driver/mysql"
)

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
