package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/txlog"
)

func schemaCommand(a *app) *cobra.Command {
	var onlyLog, onlyTargets bool
	var from, to int
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres|sqlite",
		Short: "Print the statements that create the tables of the log and of the targets",
		Long: `Print the statements that create the tables, as the program itself runs them for missing
tables: those of the transaction log, for its database, and bed_receipt and bed_order (for
writes under order keys), for each target of writes under ExactlyOnce. --log and --targets
print one part:

    bed-job schema mysql --log | mysql bed
    bed-job schema mysql --targets | mysql orders

--from and --to print the statements of an upgrade, for a migration tool of yours. The tables
of step 1 lack those of order keys, which step 2 adds:

    bed-job schema mysql --log --from 1 --to 2`,
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
			if from < 0 || from >= to || to > tables.NewestStep {
				return usagef("--from %d --to %d is no upgrade: the steps go from 0, no tables, to %d", from, to, tables.NewestStep)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			part := whole
			if cmd.Flags().Changed("from") || cmd.Flags().Changed("to") {
				part = func(text string) string {
					return strings.Join(append(tables.Steps(sqltext.FlavorOf(args[0]), text, from, to), ""), ";\n")
				}
			}
			text, err := schema(args[0], !onlyTargets, !onlyLog, part)
			if err == nil {
				_, err = io.WriteString(a.Out, text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&onlyLog, "log", false, "only the tables of the transaction log")
	cmd.Flags().BoolVar(&onlyTargets, "targets", false, "only the tables of the targets")
	cmd.Flags().IntVar(&from, "from", 0, "only the statements that follow this step")
	cmd.Flags().IntVar(&to, "to", tables.NewestStep, "only the statements up to this step")
	return cmd
}

func whole(text string) string { return text }

// schema returns the parts of a database's schema, each under its mark when there are both. part
// picks the statements to print.
func schema(database string, log, targets bool, part func(text string) string) (string, error) {
	ofLog, err := txlog.Schema(database)
	if err != nil {
		return "", err
	}
	ofTargets, err := attempt.TargetSchema(database)
	if err != nil {
		return "", err
	}
	ofLog, ofTargets = part(strings.TrimRight(ofLog, "\n")+"\n"), part(ofTargets)
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
