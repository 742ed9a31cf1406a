// Command bench measures what delivery costs beside the bare driver. `make
// bench` runs internal/bench/contenders instead, which is the same with other
// people's wrappers and queues.
package main

import (
	"os"

	"github.com/bedsql/bed/internal/bench"
)

func main() { os.Exit(bench.Main(bench.Options{}, os.Args[1:], os.Stdout, os.Stderr)) }
