package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

func showCommand(a *app) *cobra.Command {
	var (
		out    output
		values bool
	)
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one entry whole: SQL, parameters, tries, last error, and whether it is applied",
		Long:  "Show one entry whole. ID is that of any row of its unit.\n" + verdictHelp + "\n" + paramHelp + "\n" + jsonHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "show takes one ID")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConfig(cmd.Context(), logAndTargets, func(st txlog.Storage, cfg *config) error {
				return showOne(cmd.Context(), a, st, cfg, args[0], values, out)
			})
		},
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	cmd.Flags().BoolVar(&values, "show-parameters", false, "print the parameters' values")
	return cmd
}

func showOne(ctx context.Context, a *app, st txlog.Storage, cfg *config, id string, values bool, out output) error {
	u, err := st.Get(ctx, id)
	if err != nil {
		return explain(id, err)
	}
	asked := newVerifier(a, st, cfg)
	defer asked.Close()
	judged, err := asked.Judge(ctx, []*txlog.Unit{u})
	if err != nil {
		return err
	}
	if out.json() {
		v := viewOf(a, u, &judged[0])
		for i, s := range u.Statements {
			params, err := ops.Parameters(s, values)
			if err != nil {
				v.Statements[i].ParametersError = err.Error()
				continue
			}
			v.Statements[i].Parameters = &params
		}
		return printJSON(a.Out, v)
	}
	var b bytes.Buffer
	showUnit(a, &b, u, judged[0])
	for i, s := range u.Statements {
		showStatement(&b, s, i, len(u.Statements), values)
	}
	_, err = a.Out.Write(b.Bytes())
	return err
}

func showUnit(a *app, b io.Writer, u *txlog.Unit, j ops.Judgement) {
	now := logClock(a, u)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, printable(value))
		}
	}
	row("ID", u.ID)
	if u.TransactionID != u.ID {
		row("Transaction", u.TransactionID)
	}
	row("Data source", u.DataSource)
	row("State", string(ops.StateOf(u)))
	row("Created", when(now, u.CreatedAt))
	row("Tries", fmt.Sprint(u.Tries))
	switch ops.StateOf(u) {
	case ops.Waiting:
		row("Next try", until(now, dueAt(a, u)))
	case ops.Leased:
		row("Leased until", until(now, u.NextTry))
	}
	if u.InDoubt && !u.Leased {
		row("In doubt", "yes: an earlier attempt may have been applied")
	}
	row("Verdict", j.Short()+": "+j.Advice(u))
	row("Not replayable", u.NotReplayable)
	row("Settings", u.Settings)
	row("Receipt in", u.Place)
	if u.Unreadable != nil {
		row("Unreadable", u.Unreadable.Error())
	}
	row("Last error", u.LastError)
	_ = w.Flush()
}

func showStatement(b io.Writer, s txlog.Statement, i, of int, values bool) {
	fmt.Fprint(b, "\nSQL")
	if of > 1 {
		fmt.Fprintf(b, " %d of %d", i+1, of)
	}
	fmt.Fprintf(b, ":\n    %s\n", strings.ReplaceAll(strings.TrimRight(printableLines(s.SQL), "\n"), "\n", "\n    "))
	params, err := ops.Parameters(s, values)
	switch {
	case err != nil:
		fmt.Fprintf(b, "Parameters: %s\n", printable(err.Error()))
		return
	case len(params) == 0:
		return
	case values:
		fmt.Fprintln(b, "Parameters:")
	default:
		fmt.Fprintln(b, "Parameters (their values with --show-parameters):")
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, p := range params {
		fmt.Fprintf(w, "    %s\n", paramLine(p, values))
	}
	_ = w.Flush()
}

// explain says what to do about an error of one entry.
func explain(id string, err error) error {
	switch {
	case errors.Is(err, txlog.ErrNotFound):
		return fmt.Errorf("%s: the log holds no such id: it was delivered or discarded, or the id is mistyped", id)
	case errors.Is(err, txlog.ErrLeased):
		return fmt.Errorf("%s: it is being delivered at this moment; look again in a while (bed-job show says until when it is leased)", id)
	case errors.Is(err, txlog.ErrOutcomeUnknown):
		return fmt.Errorf("%s: it is not known whether it was done; once the log answers, bed-job show tells: %w", id, err)
	default:
		return fmt.Errorf("%s: %w", id, err)
	}
}
