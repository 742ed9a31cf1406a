package bedsql

import (
	"fmt"

	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// sharedFile returns the error of writes to a target whose own file has the SQLite log, because the
// entry and the write would wait for each other. WithTx writes both in one transaction.
func sharedFile(t delivery.Target, cfg Config) error {
	if driver, location := whereabouts(cfg.Storage); driver != "sqlite" || !target.SameFile(location, t.File) {
		return nil
	}
	return fmt.Errorf("bed: the transaction log and the data source %s are the same SQLite file, each would wait for the other's lock: give the log a file of its own, or write in a transaction of bedsql.WithTx", t.DataSource)
}

// whereabouts returns the driver and the location of a log; empty for one without a database.
func whereabouts(log txlog.Storage) (driver, location string) {
	if l, ok := log.(interface {
		Driver() string
		Location() string
	}); ok {
		return l.Driver(), l.Location()
	}
	return "", ""
}
