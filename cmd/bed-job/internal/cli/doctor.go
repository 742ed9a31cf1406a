package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/cmd/bed-job/internal/doctor"
	"github.com/bedsql/bed/internal/safetext"
)

func doctorCommand(a *app) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at an installation, and say what is wrong and what to do",
		Long: `Look at the configuration, the transaction log and the targets, and say what is wrong
and what to do: tables, columns and rights; settings under which a crash loses what
was committed; what differs between databases and should not; what the job needs and
is not given. It asks and changes nothing.

Exit status: 0 nothing was found, 1 something is wrong, 3 it could not look at
everything and found nothing in what it saw.

JSON (-o json): an object with findings, an array of objects with where, check (a word
that does not change), what and remedy, and notLookedAt, an array of texts.`,
		Args: func(cmd *cobra.Command, args []string) error { return as(exitUnknown, noArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), a, out) },
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return as(exitUnknown, usagef(cmd, "%v", err)) })
	return cmd
}

// examine is the command.
func examine(ctx context.Context, a *app, out output) error {
	in, problems, err := installation(a)
	if err != nil {
		return as(exitUnknown, redactError(err, a.dsns...))
	}
	report := doctor.Examine(ctx, in)
	shared := false
	for _, f := range report.Findings {
		shared = shared || f.Check == "shared-file"
	}
	first := []doctor.Finding{}
	for _, p := range problems {
		if shared && strings.Contains(p, "SQLite file of the transaction log") {
			continue
		}
		first = append(first, doctor.Finding{Where: "the configuration", Check: "file", What: p, Remedy: "mend the line; bed-job run does not start before"})
	}
	for _, f := range report.Findings {
		if f.Check != "no-targets" || len(problems) == 0 { // what is wrong there was said
			first = append(first, f)
		}
	}
	report.Findings = first
	for i, f := range report.Findings {
		report.Findings[i].What, report.Findings[i].Remedy = redact(f.What, a.dsns...), redact(f.Remedy, a.dsns...)
	}
	for i, text := range report.Unseen {
		report.Unseen[i] = redact(text, a.dsns...)
	}
	if err := printReport(a, report, out); err != nil {
		return as(exitUnknown, err)
	}
	switch {
	case len(report.Findings) > 0:
		return errReported
	case len(report.Unseen) > 0:
		return as(exitUnknown, errReported)
	default:
		return nil
	}
}

func printReport(a *app, report *doctor.Report, out output) error {
	if out.json() {
		text, err := marshal(report, "")
		if err == nil {
			_, err = fmt.Fprintln(a.Out, text)
		}
		return err
	}
	for _, f := range report.Findings {
		fmt.Fprintf(a.Out, "%s: %s\n    do: %s\n", safetext.Line(f.Where), safetext.Line(f.What), safetext.Line(f.Remedy))
	}
	for _, text := range report.Unseen {
		fmt.Fprintf(a.Out, "not looked at: %s\n", safetext.Line(text))
	}
	switch n := len(report.Findings); {
	case n > 0:
		fmt.Fprintf(a.Out, "%d found\n", n)
	case len(report.Unseen) == 0:
		fmt.Fprintln(a.Out, "nothing found")
	}
	return nil
}

// installation reads the configuration as far as possible. problems are what
// keeps the job from using it.
func installation(a *app) (in doctor.Installation, problems []string, err error) {
	if _, err := a.logger(); err != nil {
		return in, nil, err
	}
	cfg, err := a.readConfig(a.configPath, wholeFile)
	var wrong *ConfigError
	if errors.As(err, &wrong) {
		problems = strings.Split(wrong.Error(), "\n")
		if cfg, err = a.readConfig(a.configPath, logAndTargets); err != nil {
			return in, nil, wrong
		}
	}
	if err != nil {
		return in, nil, err
	}
	if err := cfg.choose(a.logName); err != nil {
		return in, nil, err
	}
	in = doctor.Installation{Job: cfg.job, Now: a.Now}
	if in.Log, err = diagnosed(cfg.log); err != nil {
		return in, nil, err
	}
	in.Log.Name = ""
	for _, s := range cfg.targets {
		if s.problem != nil {
			continue // among the problems
		}
		t, err := diagnosed(s)
		if err != nil {
			t.Problem = err.Error()
		}
		in.Targets = append(in.Targets, t)
	}
	return in, problems, nil
}

func diagnosed(s dataSource) (doctor.Database, error) {
	t, err := s.target()
	return doctor.Database{Name: s.name, Driver: s.driver, DSN: s.dsn, Target: t}, err
}
