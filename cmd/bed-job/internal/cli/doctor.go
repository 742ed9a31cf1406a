package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/cmd/bed-job/internal/doctor"
)

func doctorCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine an installation, and report problems with their remedies",
		Long: `Examine the configuration, the transaction log and the targets, and report problems with
their remedies: tables, columns and rights; settings under which a crash loses commits;
harmful differences between databases; unmet needs of the job. It only reads, and changes
nothing.

Exit status: 0 no problem, 1 a problem, 3 no problem in the examined parts, but some parts
could not be examined.

JSON (-o json): an object with findings, an array of objects with where, check (a stable
word), what and remedy; with notLookedAt, warnings, checked and notes, arrays of texts; and
with atHome, the data sources whose transactions can carry entries of the log (bedsql.WithTx).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), a) },
	}
	a.logFlags(cmd)
	return cmd
}

func examine(ctx context.Context, a *app) error {
	in, problems, err := installation(a)
	var unreadable *ConfigError
	report := &doctor.Report{Findings: []doctor.Finding{}, Unseen: []string{"the log and the data sources: the configuration names no log that can be used"}, Notes: []string{}, Warnings: []string{}, AtHome: []string{}, Checked: []string{}}
	switch {
	case err == nil:
		report = doctor.Examine(ctx, in)
	case !errors.As(err, &unreadable):
		return err
	case problems == nil:
		problems = strings.Split(unreadable.Error(), "\n")
	}
	findings := []doctor.Finding{}
	for _, p := range problems {
		if strings.Contains(p, "SQLite file of the transaction log") {
			continue // the report has it
		}
		findings = append(findings, doctor.Finding{Where: "the configuration", Check: "file", What: p, Remedy: "fix the line; bed-job run does not start until then"})
	}
	report.Findings = append(findings, report.Findings...)
	return cmp.Or(printReport(a, report), judged(len(report.Findings) > 0, len(report.Unseen) > 0))
}

func printReport(a *app, report *doctor.Report) error {
	if a.json() {
		return printJSON(a.Out, report)
	}
	for _, f := range report.Findings {
		fmt.Fprintf(a.Out, "%s: %s\n    do: %s\n", printable(f.Where), printable(f.What), printable(f.Remedy))
	}
	for _, list := range []struct {
		mark  string
		texts []string
	}{{"not looked at", report.Unseen}, {"warning", report.Warnings}, {"looked at", report.Checked}, {"note", report.Notes}} {
		for _, text := range list.texts {
			fmt.Fprintf(a.Out, "%s: %s\n", list.mark, printable(text))
		}
	}
	if len(report.AtHome) > 0 {
		fmt.Fprintf(a.Out, "at home with the log (bedsql.WithTx): %s\n", printable(strings.Join(report.AtHome, ", ")))
	}
	switch n := len(report.Findings); {
	case n > 0:
		fmt.Fprintf(a.Out, "%d found\n", n)
	case len(report.Unseen) == 0:
		fmt.Fprintln(a.Out, "nothing found")
	}
	return nil
}

// installation reads the configuration as far as possible. problems prevent the job from using it.
func installation(a *app) (in doctor.Installation, problems []string, err error) {
	cfg, err := a.readConfig(wholeFile)
	var wrong *ConfigError
	if errors.As(err, &wrong) {
		problems = strings.Split(wrong.Error(), "\n")
		if cfg, err = a.readConfig(logAndTargets); err != nil {
			return in, problems, wrong
		}
	}
	if err != nil {
		return in, nil, err
	}
	if len(cfg.logs) > 1 {
		return in, nil, cfg.choose("")
	}
	in = doctor.Installation{Job: cfg.job, Now: a.Now, Redact: a.redact}
	if in.Log, err = diagnosed(cfg.log); err != nil {
		return in, problems, &ConfigError{err}
	}
	in.Log.Name = ""
	for _, s := range cfg.targets {
		if t, err := diagnosed(s); s.problem == nil && err == nil { // else it is among the problems
			in.Targets = append(in.Targets, t)
		}
	}
	return in, problems, nil
}

func diagnosed(s dataSource) (doctor.Database, error) {
	t, err := s.target()
	db := doctor.Database{Name: s.name, Driver: s.driver, DSN: s.dsn, Access: s.access, Target: t}
	if err == nil && strings.Contains(s.dsn, "bedDataSource") {
		db.Named = s.named()
	}
	return db, err
}
