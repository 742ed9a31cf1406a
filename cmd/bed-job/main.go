// Command bed-job delivers the transaction log and lets a person look at it.
package main

import (
	"os"

	"github.com/bedsql/bed/cmd/bed-job/internal/cli"
)

func main() { os.Exit(cli.Main()) }
