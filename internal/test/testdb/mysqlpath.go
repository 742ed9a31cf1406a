package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
)

// EnvMySQLPath set to 1 has the tests run as on MySQL: the MariaDB servers that
// are started say that they are MySQL 8.0, so that bed and the libraries use none
// of what only MariaDB has (compound statements, RETURNING), and [Each] runs on
// them alone.
const EnvMySQLPath = "BED_TEST_MYSQL_PATH"

const mysqlPathVersion = "8.0.36-bed-test"

// MySQLPath reports whether the tests run as on MySQL.
func MySQLPath() bool { return os.Getenv(EnvMySQLPath) == "1" }

// checkPath refuses a server that would be taken for MariaDB.
func (a admin) checkPath() error {
	if !MySQLPath() || a.driver != DriverMySQL {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return a.do(ctx, func(pool *sql.DB) error {
		var version string
		err := pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
		if strings.Contains(version, "MariaDB") {
			return fmt.Errorf("with %s=1 the server must not call itself MariaDB, as it does (%s): run `make test-mysql-path`, which starts one", EnvMySQLPath, version)
		}
		return err
	})
}
