// Command testserver finds or starts the database servers that tests run
// against; scripts/test.sh asks it, so that both look in the same places.
//
//	testserver find mysql|postgres       prints the DSN of the shared server
//	testserver installed mysql|postgres  succeeds if private servers can be started
//	testserver serve mysql|postgres      starts one, prints its DSN, and ends it
//	                                     when its standard input is closed
//	testserver durable mysql|postgres    the same with every commit on the disk
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/bedsql/bed/internal/test/testdb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: testserver find|installed|serve|durable mysql|postgres")
	}
	switch verb, driver := args[0], args[1]; verb {
	case "find":
		dsn, err := testdb.Find(driver)
		if err != nil {
			return err
		}
		fmt.Println(dsn)
		return nil
	case "installed":
		return testdb.Installed(driver)
	case "serve", "durable":
		return serve(driver, verb == "durable")
	default:
		return fmt.Errorf("no such verb %q; there are find, installed, serve and durable", verb)
	}
}

func serve(driver string, durable bool) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	dsn, stop, err := testdb.Standalone(driver, durable)
	if err != nil {
		return err
	}
	fmt.Println(dsn)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	select {
	case <-ctx.Done():
	case <-closed:
	}
	return stop()
}
