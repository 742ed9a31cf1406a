package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/txlog"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "schema mysql|postgres|sqlite",
		Short:     "Print the statements that create the transaction log's tables",
		Long:      "Print the statements that create the transaction log's tables, the same text that\nthe program runs by itself when they are missing.",
		ValidArgs: []string{"mysql", "postgres", "sqlite"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "schema takes one database: mysql, postgres or sqlite")
			}
			if drivers[args[0]].target == nil {
				return usagef(cmd, "%q is no database that can hold the log: mysql, postgres or sqlite", args[0])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := txlog.Schema(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.Out, strings.TrimRight(text, "\n"))
			return err
		},
	}
}
