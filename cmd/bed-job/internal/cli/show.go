package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/txlog"
)

const verdictHelp = `
The verdict says whether the writes of an entry are applied in its target. It is read
from the receipt that exactly-once deliveries leave there, with the DSN of
targetDataSource:

    already applied              discard is safe; retry only removes the entry
    not applied                  retry applies it once; discard gives it up. For an entry
                                 that is not replayable retry decides that it never
                                 will be applied
    decided never to be applied  discard it, and do the work anew if it is still wanted
    cannot tell (at-least-once)  it leaves no receipt, and an attempt is in doubt: look at
                                 the data
    target unreachable           ask again when it is back
    data source not configured   add it to targetDataSource

An attempt that is still running is not waited for: "not applied" means "not yet"
until the entry is neither leased nor waiting. Receipts are only as good as both
databases: after either was restored from a backup, look at the data.

In JSON it is the field verdict: applied, notApplied, neverApplied, cannotTell,
unreachable or notConfigured; verdictDetail says more, for people to read.`

const paramHelp = `
Parameters hold the application's data: show prints their types and sizes, and their
values only with --show-parameters. What the application wrote into the SQL text
itself is part of the SQL and is printed, and so is what the database says in its
error message.

In JSON each statement also has its parameters: ordinal, name, type, size in bytes,
and with --show-parameters the value: true and false as such, everything else as
text (whole numbers keep all their digits); with encoding base64 it is bytes.
typedParameters are the values in the log's own form, which amend takes.`

func showCommand(a *app) *cobra.Command {
	var values bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one entry in full: SQL, parameters, tries, last error, and whether it is applied",
		Long:  "Show one entry whole. ID is that of any row of its unit.\n" + verdictHelp + "\n" + paramHelp + "\n" + jsonHelp,
		Args:  oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConfig(cmd.Context(), func(log boundedLog, cfg *config) error {
				return showEntry(cmd.Context(), a, log, cfg, args[0], values)
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().BoolVar(&values, "show-parameters", false, "print the parameters' values")
	return cmd
}

func showEntry(ctx context.Context, a *app, log boundedLog, cfg *config, id string, values bool) error {
	u, err := log.Get(ctx, id)
	if err != nil {
		return explain(id, err)
	}
	verifier := ops.NewVerifier(log.Missing, opsConfig(a, cfg))
	defer verifier.Close()
	judged, err := verifier.Judge(ctx, []*entry.Unit{u})
	if err != nil {
		return err
	}
	if a.json() {
		v := viewOf(a, u, &judged[0])
		for i, s := range u.Statements {
			if v.Statements[i].Parameters, err = ops.Parameters(s, values); err != nil {
				v.Statements[i].ParametersError = err.Error()
			}
			if values {
				v.Statements[i].TypedParameters = s.Params
			}
		}
		v.Session = ops.SessionOf(u, values)
		return printJSON(a.Out, v)
	}
	var b bytes.Buffer
	showUnit(a, &b, u, judged[0], values)
	for i, s := range u.Statements {
		showStatement(&b, s, i, len(u.Statements), values)
	}
	_, err = a.Out.Write(b.Bytes())
	return err
}

func showUnit(a *app, b io.Writer, u *entry.Unit, j ops.Judgement, values bool) {
	now := u.ReadAt // the log's clock
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
	row("Group", ops.GroupTexts[ops.GroupOf(u)])
	if u.Undo != nil {
		row("Compensated because", u.Undo.Cause)
	}
	row("Created", when(now, u.CreatedAt))
	row("Tries", fmt.Sprint(u.Tries))
	switch state := ops.StateOf(u); {
	case state == ops.Waiting && u.Behind == "":
		row("Next try", until(now, ops.NextTry(u, a.minAge)))
	case state == ops.Leased:
		row("Leased until", until(now, u.NextTry))
	}
	row("Waits for", u.Behind)
	if u.Blocks > 0 {
		row("Blocks", fmt.Sprintf("%s behind it under its order key (retry, discard or skip)", entries(u.Blocks)))
	}
	if u.ContendedFrom > 0 {
		row("Contended", "other transactions have been in its way since "+when(now, u.ContendedSince())+"; no try is counted for that within a day")
	}
	if u.InDoubt && !u.Leased {
		row("In doubt", "yes: an earlier attempt may have been applied")
	}
	row("Verdict", j.Short()+": "+j.Advice(u))
	row("Not replayable", u.NotReplayable)
	row("Settings", u.Settings)
	row("Session", ops.SessionOf(u, values))
	row("Receipt in", u.Place)
	if u.Unreadable != nil {
		row("Unreadable", u.Unreadable.Error())
	}
	row("Last error", u.LastError)
	_ = w.Flush()
}

func showStatement(b io.Writer, s entry.Statement, i, of int, values bool) {
	fmt.Fprint(b, "\nSQL")
	if of > 1 {
		fmt.Fprintf(b, " %d of %d", i+1, of)
	}
	fmt.Fprintf(b, ":\n    %s\n", strings.ReplaceAll(strings.TrimRight(safetext.Lines(s.SQL), "\n"), "\n", "\n    "))
	if s.Required.Given() {
		fmt.Fprintf(b, "Must change: %v\n", s.Required)
	}
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

// paramLine is the parameter for an operator: "1 @name  string, 12 bytes", and with
// its value when values are shown.
func paramLine(v ops.Parameter, values bool) string {
	s := strconv.Itoa(v.Ordinal)
	if v.Name != "" {
		s += " @" + printable(v.Name)
	}
	s += "\t" + printable(v.Type)
	if v.Size != nil {
		s += fmt.Sprintf(", %d bytes", *v.Size)
	}
	if !values {
		return s
	}
	switch x, _ := v.Value.(string); {
	case v.Value == nil:
		return s + "\tNULL"
	case v.Encoding != "":
		return s + "\t" + v.Encoding + " " + x
	case v.Type == "string":
		return s + "\t" + strconv.Quote(x)
	default:
		return s + "\t" + printable(fmt.Sprint(v.Value))
	}
}

// explain adds advice to the error of one entry.
func explain(id string, err error) error {
	switch {
	case errors.Is(err, ops.ErrNoAnswer):
		return err // withDesk explains it
	case errors.Is(err, txlog.ErrNotFound):
		return fmt.Errorf("%s: the log holds no such id: it was delivered or discarded, or the id is mistyped", id)
	case errors.Is(err, txlog.ErrLeased):
		return fmt.Errorf("%s: it is being delivered at this moment; look again in a while (bed-job show says until when it is leased)", id)
	case errors.Is(err, txlog.ErrNotFirst):
		return fmt.Errorf("%s: it is not the first one under an order key, so no entry waits for it (bed-job show says what it waits for)", id)
	case errors.Is(err, txlog.ErrUnconfirmed):
		return fmt.Errorf("%s: it is not known whether it was done; once the log answers, bed-job show tells: %w", id, err)
	default:
		return fmt.Errorf("%s: %w", id, err)
	}
}
