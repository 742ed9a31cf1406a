// Command bench measures the cost of delivery beside the bare driver, beside other people's
// wrappers (github.com/ngrok/sqlmw, github.com/XSAM/otelsql) and beside a queue in tables
// (github.com/riverqueue/river). `make bench` runs it.
package main

import (
	"database/sql"
	"database/sql/driver"
	"os"

	"github.com/XSAM/otelsql"
	"github.com/ngrok/sqlmw"

	"github.com/bedsql/bed/bench"
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

// openSqlmw wraps with an empty interceptor, the cheapest use of sqlmw.
func openSqlmw(c driver.Connector) (*sql.DB, error) {
	sql.Register("sqlmw", sqlmw.Driver(c.Driver(), sqlmw.NullInterceptor{}))
	return sql.Open("sqlmw", "")
}

// openOtelsql wraps with the defaults: spans and metrics of OpenTelemetry's global providers,
// which are empty until an application sets them.
func openOtelsql(c driver.Connector) (*sql.DB, error) {
	return otelsql.OpenDB(c), nil
}
