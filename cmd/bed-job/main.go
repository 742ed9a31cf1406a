// Command bed-job delivers the transaction log and lets an operator look at it.
package main

import (
	"os"

	"github.com/bedsql/bed/cmd/bed-job/internal/cli"
)

func main() { os.Exit(cli.Main()) }
