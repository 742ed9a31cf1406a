package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"os"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// Register makes the wrapped driver available to [database/sql.Open] under name. The DSN is
// modernc.org/sqlite's, with one more parameter, bedDataSource (see [Target]). It returns an
// error for an invalid cfg or a name that is taken.
func Register(name string, cfg bedsql.Config) error {
	return bedsql.RegisterDriver(name, Target, cfg)
}

// NewConnector wraps target for [database/sql.OpenDB]: a result of [Target], or a target
// with a Connector of modernc.org/sqlite and a DataSource. Such a connector does not reveal
// the time format of its DSN, which the job compares if target has Settings, nor a database
// in memory (NoSideConnection).
func NewConnector(target delivery.Target, cfg bedsql.Config) (driver.Connector, error) {
	if target.Dialect == nil {
		target.Dialect = sqliteDialect
	}
	return bedsql.NewConnector(target, cfg)
}

func init() {
	logdb.Register(name, logdb.Backend{
		Flavor:    sqltext.SQLite,
		Connector: logConnector,
		Answered:  func(err error) bool { return classify(err) != dialect.Unknown },
		Location:  logLocation,
	})
}

// logConnector makes connections whose transactions begin with the write lock. A claim reads
// first, and would fail after a write of another process in between.
func logConnector(dsn string, before logdb.Before) (driver.Connector, error) {
	where, bare, name, err := readDSN(dsn)
	if err == nil && before != nil {
		err = errors.New("sqlite: WithBeforeConnect has no use, its driver connects to no server")
	}
	if err != nil {
		return nil, err
	}
	head, query := cutQuery(bare)
	t, err := target(where, head+"?_txlock=immediate&"+query, name)
	if mode := where.query.Get("mode"); err == nil && t.File != "" && mode != "ro" && mode != "rw" {
		return private{t.Connector, t.File}, nil
	}
	return t.Connector, err
}

// private creates an absent log file, readable by its owner alone, because it holds
// parameters. SQLite gives its -wal and -shm the same mode. An existing file stays as it is.
type private struct {
	driver.Connector
	file string
}

func (p private) Connect(ctx context.Context) (driver.Conn, error) {
	if f, err := os.OpenFile(p.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		_ = f.Close()
	} // else SQLite says what is wrong
	return p.Connector.Connect(ctx)
}

func logLocation(dsn string) (string, error) {
	where, _, _, err := readDSN(dsn)
	return where.name, err
}
