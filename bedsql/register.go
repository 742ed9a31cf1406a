package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"sync"

	"github.com/bedsql/bed/listener/delivery"
)

var registering sync.Mutex

// RegisterDriver makes a wrapped driver available to sql.Open under name. The databases' packages
// build their Register on it. parse reads a DSN into a target: the bare driver's connector, the
// data source's name (the DSN parameter bedDataSource, hidden from the driver) and the rest.
// Mistakes in cfg, an empty name and a name in use are errors. It is safe for concurrent use.
func RegisterDriver(name string, parse func(dsn string) (delivery.Target, error), cfg Config) error {
	if name == "" {
		return fmt.Errorf("bed: the driver's name is empty")
	}
	if parse == nil {
		return fmt.Errorf("bed: driver %q: no function to read a DSN", name)
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	registering.Lock()
	defer registering.Unlock()
	if slices.Contains(sql.Drivers(), name) {
		return fmt.Errorf("bed: a driver named %q is already registered", name)
	}
	sql.Register(name, &wrapped{parse: parse, cfg: cfg})
	return nil
}

// wrapped is the registered driver.
type wrapped struct {
	parse func(dsn string) (delivery.Target, error)
	cfg   Config
}

var (
	_ driver.Driver        = (*wrapped)(nil)
	_ driver.DriverContext = (*wrapped)(nil)
)

func (d *wrapped) Open(dsn string) (driver.Conn, error) {
	c, err := d.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	return c.Connect(context.Background())
}

func (d *wrapped) OpenConnector(dsn string) (driver.Connector, error) {
	target, err := d.parse(dsn)
	if err != nil {
		return nil, err
	}
	c, err := newConnector(target, d.cfg)
	if err != nil {
		return nil, err
	}
	c.driver = d
	return c, nil
}
