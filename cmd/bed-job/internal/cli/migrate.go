package cli

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/tables"
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
	db := sql.OpenDB(t.Connector)
	defer func() { _ = db.Close() }()
	text, err := schema(s.driver)
	if err != nil {
		return err
	}
	place := tables.Place{Flavor: t.Dialect.Flavor}
	if isTarget {
		place.Schema = t.ReceiptSchema
	}
	bounded, cancel := context.WithTimeout(ctx, a.logTimeout)
	plan, err := missing(bounded, db, place, text, isTarget)
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

// missing returns the statements that add the missing parts of a schema, in order. They neither drop
// nor change anything. Missing tables of a target stay missing: it creates them on first use.
func missing(ctx context.Context, db *sql.DB, at tables.Place, schema string, isTarget bool) (plan []string, err error) {
	for _, t := range tables.Of(at.Flavor, schema) {
		found, err := at.Read(ctx, db, t.Name)
		switch {
		case err != nil:
			return nil, err
		case len(found.Columns) == 0 && isTarget:
			continue
		case len(found.Columns) == 0:
			plan = append(plan, t.Statements()...)
			continue
		}
		name := attempt.Receipts{Schema: at.Schema}.Placed(at.Flavor, t.Name)
		for _, c := range t.Columns {
			if !slices.ContainsFunc(found.Columns, func(is tables.Column) bool { return is.Name == c.Name }) {
				plan = append(plan, t.Add(name, c)...)
			}
		}
		if !t.HasKey(found.Indexes) {
			plan = append(plan, t.AddKey(name))
		}
		for _, want := range t.Indexes {
			if !slices.ContainsFunc(found.Indexes, func(i tables.Index) bool { return i.Name == want.Name }) {
				plan = append(plan, want.Create)
			}
		}
	}
	return plan, nil
}
