package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

func schemaCommand(a *app) *cobra.Command {
	var onlyLog, onlyTargets bool
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres|sqlite",
		Short: "Print the statements that create the tables of the log and of the targets",
		Long: `Print the statements that create the tables, as the program itself runs them for missing
tables: those of the transaction log, for its database, and bed_receipt and bed_order (for
writes under order keys), for each target of writes under ExactlyOnce. --log and --targets
print one part:

    bed-job schema mysql --log | mysql bed
    bed-job schema mysql --targets | mysql orders`,
		ValidArgs: []string{"mysql", "postgres", "sqlite"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("schema takes one database: mysql, postgres or sqlite")
			}
			if databases[args[0]] == nil {
				return usagef("%q is no database that can hold the log: mysql, postgres or sqlite", args[0])
			}
			if onlyLog && onlyTargets {
				return usagef("--log and --targets exclude each other: without either both are printed")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := schema(args[0], !onlyTargets, !onlyLog)
			if err == nil {
				_, err = io.WriteString(a.Out, text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&onlyLog, "log", false, "only the tables of the transaction log")
	cmd.Flags().BoolVar(&onlyTargets, "targets", false, "only the tables of the targets")
	return cmd
}

// schema gives the parts of a database's schema, each under its mark when there
// are both.
func schema(database string, log, targets bool) (string, error) {
	ofLog, err := txlog.Schema(database)
	if err != nil {
		return "", err
	}
	ofTargets, err := attempt.TargetSchema(database)
	if err != nil {
		return "", err
	}
	ofLog = strings.TrimRight(ofLog, "\n") + "\n"
	switch {
	case !targets:
		return ofLog, nil
	case !log:
		return ofTargets, nil
	default:
		return "-- ===== the transaction log: in the database that keeps it =====\n\n" + ofLog +
			"\n-- ===== receipts and order keys: in each target to which writes are delivered exactly once =====\n\n" + ofTargets, nil
	}
}
