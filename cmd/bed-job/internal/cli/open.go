package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/cmd/bed-job/internal/services"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

type targetOf = func(dsn string, a *access.Access) (delivery.Target, error)

// databases are the drivers for logs and targets: importing their packages registers them with
// txlog.
var databases = map[string]targetOf{
	"mysql": access.MySQL, "postgres": access.Postgres, "sqlite": sqliteTarget,
}

func sqliteTarget(dsn string, a *access.Access) (delivery.Target, error) {
	if a != nil {
		return delivery.Target{}, errors.New("sqlite reads a file: it takes neither tls nor a password")
	}
	return sqlite.Target(dsn)
}

// drivers are the databases, and what is a target only: message brokers and HTTP services.
var drivers = func() map[string]targetOf {
	all := maps.Clone(databases)
	for name, target := range brokers.Targets {
		all[name] = target
	}
	all["http"] = services.HTTP
	return all
}()

func namesOf(drivers map[string]targetOf) string {
	return strings.Join(slices.Sorted(maps.Keys(drivers)), ", ")
}

// target reads the DSN of a data source to deliver to. Nothing is dialled.
func (s dataSource) target() (delivery.Target, error) {
	read := drivers[s.driver]
	if read == nil {
		return delivery.Target{}, fmt.Errorf("data source %s: unknown driver, it must be %s", safeName(s.name), namesOf(drivers))
	}
	t, err := read(s.dsn, s.access)
	if err != nil {
		return t, fmt.Errorf("data source %s: %w", safeName(s.name), err)
	}
	t.DataSource = s.name
	return t, nil
}

// openLog opens the transaction log. Looking at a log never creates one.
func openLog(ctx context.Context, s dataSource, create bool) (txlog.Storage, error) {
	var opts []txlog.Option
	if !create {
		// SQLite would create a missing file.
		if t, err := s.target(); err == nil && t.File != "" {
			if _, err := os.Stat(t.File); err != nil {
				return nil, fmt.Errorf("the transaction log cannot be opened: %w", err)
			}
		}
		opts = append(opts, txlog.WithoutCreate())
	}
	if s.noActivity {
		opts = append(opts, txlog.WithoutActivity())
	}
	if s.access != nil {
		opts = append(opts, txlog.WithBeforeConnect(s.access.BeforeConnect))
	}
	st, err := txlog.Open(ctx, s.driver, s.dsn, opts...)
	if err != nil {
		return nil, fmt.Errorf("the transaction log cannot be opened: %w", err)
	}
	return st, nil
}
