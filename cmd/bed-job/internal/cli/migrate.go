package cli

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/cmd/bed-job/internal/migrate"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

func migrateCommand(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Update the tables of an older version",
		Long: `Update the tables of an older version: those of the log, and bed_receipt and bed_order in
each target that has them. Missing parts of the schema are added; nothing is dropped or
changed, so that older versions continue to work. A log without tables gets them. The
account needs the right to alter tables; --dry-run prints the statements for an account
that has it.

JSON (-o json): an object with statements, an array of objects with where and sql, and
dryRun.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return migrateAll(cmd.Context(), a, dryRun) },
	}
	a.logFlags(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the statements, and change nothing")
	return cmd
}

// migration is the result in JSON.
type migration struct {
	Statements []step `json:"statements"`
	DryRun     bool   `json:"dryRun"`
}

// step is a statement of a migration.
type step struct {
	Where string `json:"where"`
	SQL   string `json:"sql"`
}

// migrateAll is the command. It migrates the other targets even if one fails.
func migrateAll(ctx context.Context, a *app, dryRun bool) error {
	cfg, err := a.readConfig(logAndTargets)
	if err != nil {
		return err
	}
	m := &migration{Statements: []step{}, DryRun: dryRun}
	if err := m.database(ctx, a, "the log", cfg.log, txlog.Schema, false); err != nil {
		return err
	}
	failed := false
	for _, s := range cfg.targets {
		if err := m.database(ctx, a, "data source "+s.name, s, attempt.TargetSchema, true); err != nil {
			failed = true
			a.complain(err.Error())
		}
	}
	if a.json() {
		err = printJSON(a.Out, m)
	} else if len(m.Statements) == 0 && !failed {
		fmt.Fprintln(a.Err, "All tables are up to date.")
	}
	if failed {
		return errReported
	}
	return err
}

// database plans the changes to one database, and makes them unless it is a dry run.
func (m *migration) database(ctx context.Context, a *app, where string, s dataSource, schema func(driver string) (string, error), isTarget bool) error {
	if s.problem != nil {
		return fmt.Errorf("%s: %w", where, s.problem)
	}
	t, err := s.target()
	if err != nil {
		return err
	}
	if t.File != "" {
		if _, err := os.Stat(t.File); err != nil {
			return fmt.Errorf("%s: %w", where, err) // opening it would make it
		}
	}
	db := migrate.Database{DB: sql.OpenDB(t.Connector), Flavor: t.Dialect.Flavor, OnlyThere: isTarget}
	defer func() { _ = db.Close() }()
	if db.Schema, err = schema(s.driver); err != nil {
		return err
	}
	if isTarget {
		db.Receipts.Schema = t.ReceiptSchema
	}
	bounded, cancel := context.WithTimeout(ctx, a.logTimeout)
	plan, err := db.Plan(bounded)
	cancel()
	if err != nil {
		return fmt.Errorf("%s: its tables cannot be looked at: %w", where, err)
	}
	for _, statement := range plan {
		if !m.DryRun {
			// As long as it takes: the table may be large.
			if _, err := db.ExecContext(ctx, statement); err != nil {
				line, _, _ := strings.Cut(statement, "\n")
				return fmt.Errorf("%s: %s: %w; what was done before stays, rerun once this is fixed", where, line, err)
			}
		}
		if m.Statements = append(m.Statements, step{where, statement}); !a.json() {
			fmt.Fprintf(a.Out, "-- %s\n%s;\n", printable(where), statement)
		}
	}
	return nil
}
