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
	var (
		dryRun bool
		out    output
	)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the tables of an older version up to date",
		Long: `Bring the tables of an older version up to date: those of the log, and bed_receipt in each
target that has it. What the schema has and the database lacks is added; nothing is
dropped or changed, so that older versions go on working meanwhile. A log that has no
tables gets them. The account must be allowed to alter tables; with --dry-run the
statements are printed for one who is.

JSON (-o json): an object with statements, an array of objects with where and sql, and
dryRun.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return migrateAll(cmd.Context(), a, dryRun, out) },
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the statements, and change nothing")
	return cmd
}

// step is a statement of a migration.
type step struct {
	Where string `json:"where"`
	SQL   string `json:"sql"`
}

// migrateAll is the command.
func migrateAll(ctx context.Context, a *app, dryRun bool, out output) error {
	if _, err := a.logger(); err != nil {
		return err
	}
	cfg, err := a.readConfig(a.configPath, logAndTargets)
	if err != nil {
		return err
	}
	steps := []step{}
	ofLog, err := txlog.Schema(cfg.log.driver)
	if err == nil {
		steps, err = migrateOne(ctx, a, steps, "the log", cfg.log, migrate.Database{Schema: ofLog}, dryRun, out)
	}
	if err != nil {
		return redactError(err, a.dsns...)
	}
	failed := false
	for _, s := range cfg.targets {
		where := "data source " + s.name
		more, err := migrateTarget(ctx, a, steps, where, s, dryRun, out)
		if steps = more; err != nil {
			failed = true
			a.complain(redact(err.Error(), a.dsns...))
		}
	}
	if out.json() {
		text, err := marshal(struct {
			Statements []step `json:"statements"`
			DryRun     bool   `json:"dryRun"`
		}{steps, dryRun}, "")
		if err != nil {
			return err
		}
		fmt.Fprintln(a.Out, text)
	} else if len(steps) == 0 && !failed {
		fmt.Fprintln(a.Err, "All tables are up to date.")
	}
	if failed {
		return errReported
	}
	return nil
}

func migrateTarget(ctx context.Context, a *app, steps []step, where string, s dataSource, dryRun bool, out output) ([]step, error) {
	if s.problem != nil {
		return steps, fmt.Errorf("%s: %w", where, s.problem)
	}
	text, err := attempt.ReceiptSchema(s.driver)
	if err != nil {
		return steps, err
	}
	return migrateOne(ctx, a, steps, where, s, migrate.Database{Schema: text, OnlyThere: true}, dryRun, out)
}

// migrateOne plans and, unless it is a dry run, runs what one database lacks.
func migrateOne(ctx context.Context, a *app, steps []step, where string, s dataSource, db migrate.Database, dryRun bool, out output) ([]step, error) {
	t, err := s.target()
	if err != nil {
		return steps, err
	}
	if t.File != "" {
		if _, err := os.Stat(t.File); err != nil {
			return steps, fmt.Errorf("%s: %w", where, err) // opening it would make it
		}
	}
	db.DB, db.Flavor = sql.OpenDB(t.Connector), t.Dialect.Flavor
	if db.OnlyThere && t.ReceiptSchema != "" {
		db.In = t.ReceiptSchema
		db.Table = attempt.Receipts{Schema: db.In}.Table(db.Flavor)
	}
	defer func() { _ = db.Close() }()
	bounded, cancel := a.bound(ctx)
	plan, err := db.Plan(bounded)
	cancel()
	if err != nil {
		return steps, fmt.Errorf("%s: its tables cannot be looked at: %w", where, err)
	}
	for _, statement := range plan {
		if !dryRun {
			// As long as it takes: the table may be large.
			if _, err := db.ExecContext(ctx, statement); err != nil {
				line, _, _ := strings.Cut(statement, "\n")
				return steps, fmt.Errorf("%s: %s: %w; what was done before stays, run it again when this is mended", where, line, err)
			}
		}
		if steps = append(steps, step{where, statement}); !out.json() {
			fmt.Fprintf(a.Out, "-- %s\n%s;\n", printable(where), statement)
		}
	}
	return steps, nil
}
