// Command leave leaves entries waiting: leave DRIVER LOG_DSN TARGET_DSN.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/bedsql/bed/internal/test/upgrade/entries"
)

func main() {
	w, err := entries.Open(context.Background(), os.Args[1], os.Args[2], os.Args[3])
	if err == nil {
		err = w.Leave(context.Background())
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
