// Command contenders is the benchmark with other people's wrappers and queues
// in it: github.com/ngrok/sqlmw, github.com/XSAM/otelsql and
// github.com/riverqueue/river. It is a module of its own, so that they are
// nobody's dependencies but its own. `make bench` builds and runs it.
package main

import (
	"database/sql"
	"database/sql/driver"
	"os"

	"github.com/XSAM/otelsql"
	"github.com/ngrok/sqlmw"

	"github.com/bedsql/bed/internal/bench"
)

func main() {
	os.Exit(bench.Main(bench.Options{
		Wrappers: []bench.Wrapper{
			{Name: "sqlmw", Open: openSqlmw},
			{Name: "otelsql", Open: openOtelsql},
		},
		Queues: []bench.Queue{{Name: "river", Fill: fillRiver}},
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// openSqlmw wraps with an interceptor that does nothing, which is the least
// that sqlmw costs.
func openSqlmw(c driver.Connector) (*sql.DB, error) {
	sql.Register("sqlmw", sqlmw.Driver(c.Driver(), sqlmw.NullInterceptor{}))
	return sql.Open("sqlmw", "")
}

// openOtelsql wraps with the defaults: spans and metrics of OpenTelemetry's
// global providers, which do nothing until an application sets them.
func openOtelsql(c driver.Connector) (*sql.DB, error) {
	return otelsql.OpenDB(c), nil
}
