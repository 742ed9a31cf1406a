// Command testserver finds or starts the database servers for tests. scripts/servers.sh calls it,
// so that both look in the same places.
//
//	testserver find mysql|postgres     prints the DSN of the shared server
//	testserver serve mysql|postgres|mysql-5.6
//	                                   starts one, prints its DSN, and ends it
//	                                   when its standard input is closed; if
//	                                   it is killed, the server dies too
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/bedsql/bed/internal/test/testdb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	usage := errors.New("usage: testserver find mysql|postgres, testserver serve mysql|postgres|mysql-5.6")
	if len(args) != 2 {
		return usage
	}
	switch verb, driver := args[0], args[1]; verb {
	case "find":
		dsn, err := testdb.Find(driver)
		if err != nil {
			return err
		}
		fmt.Println(dsn)
		return nil
	case "serve":
		dsn, stop, err := testdb.Standalone(driver)
		if err != nil {
			return err
		}
		fmt.Println(dsn)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return stop()
	default:
		return usage
	}
}
