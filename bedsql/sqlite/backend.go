package sqlite

import (
	"database/sql/driver"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func init() {
	txlog.RegisterBackend(name, txlog.Backend{
		Flavor:    txlog.FlavorSQLite,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != delivery.Unknown },
		Location:  logLocation,
	})
}

// logConnector makes connections whose transactions take the write lock as they begin:
// a claim, which reads first, would fail when another process wrote in between.
func logConnector(dsn string) (driver.Connector, error) {
	where, bare, name, err := readDSN(dsn)
	if err != nil {
		return nil, err
	}
	head, query := cutQuery(bare)
	t, err := target(where, head+"?_txlock=immediate&"+query, name)
	return t.Connector, err
}

func logLocation(dsn string) (string, error) {
	where, _, _, err := readDSN(dsn)
	return where.name, err
}
