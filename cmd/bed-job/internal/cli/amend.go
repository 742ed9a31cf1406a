package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func amendCommand(a *app) *cobra.Command {
	m := &amender{app: a}
	cmd := &cobra.Command{
		Use:   "amend ID | --kind KIND",
		Short: "Replace the SQL or the parameters of parked entries that are certainly not applied",
		Long: `Replace the SQL or the parameters of one statement of a parked entry, such as after
renaming a column. The entry must certainly not be applied. With --kind, do so for all
entries of a kind; they must hold the same text. The new text can be any DML. Entries stay
parked: retry them afterwards. On a terminal it asks first; elsewhere it requires --yes.
It requires a --reason; the audit keeps the old text.

It refuses an entry in doubt, unless the receipt ends the doubt; an entry that must not be
run again; an entry written under an idempotency key; a text other than one DML statement;
and a text that the data source, if reachable, would not prepare.

With --kind (see kinds and rehearse), the parked entries matching it and the other filters
are counted first, at most 10,000, and no others are changed. The first one is tried in its
new form, in a transaction that is rolled back: if it is refused, nothing changes.
--dry-run ends there. Entries that cannot be amended stay as they are, and are reported.

Parameters are a JSON array in the log's own form, such as [1, "text", {"uint64": 7}], or
as show --show-parameters -o json prints them in parameters or typedParameters. Without
them, the old ones stay. For text and parameters, @FILE reads a file, and - standard input:
other users of the machine can see values on a command line.

JSON (-o json): an object with id, statement and unprepared (why the data source could not
be asked; empty if it accepts the text). With --kind, one with changed, gone and left
(numbers), ids (of the changed entries), kept (the reasons for leaving others: why, entries
and oldest), statement, kind (of the entries with the new text), tried (an ID), trial,
untried (why there is no trial) and dryRun.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := m.read(cmd, args); err != nil {
				return err
			}
			return withDesk(cmd.Context(), a, func(d *desk) error {
				if len(args) == 1 {
					return m.one(cmd.Context(), d, args[0])
				}
				return m.all(cmd.Context(), d)
			})
		},
	}
	a.logFlags(cmd)
	filterFlags(a, cmd, &m.filters)
	flags := cmd.Flags()
	flags.StringVar(&m.to.SQL, "sql", "", "the new text, @FILE, or - for standard input (default: the old text)")
	flags.StringVar(&m.to.Parameters, "parameters", "", "the new parameters as a `JSON` array, @FILE, or - (default: the old ones)")
	flags.IntVar(&m.to.Statement, "statement", 0, "the number of the statement, if there are several, from 1")
	reasonFlags(cmd, &m.reason, &m.dryRun)
	flags.BoolVar(&m.yes, "yes", false, "do not ask")
	return cmd
}

type amender struct {
	*app
	filters
	to          ops.Amendment
	reason      string
	dryRun, yes bool
}

// read reads the command line and the named files.
func (m *amender) read(cmd *cobra.Command, args []string) error {
	flags := cmd.Flags()
	if err := m.filters.read(cmd); err != nil {
		return err
	}
	switch {
	case len(args) > 1 || (len(args) == 1) == m.given() || len(args) == 0 && m.Kind == "":
		return usagef("amend takes one ID, or --kind and the other filters")
	case m.State != "" && m.State != ops.Parked:
		return usagef("only parked entries can be amended: park them first")
	case len(args) == 1 && m.dryRun:
		return usagef("--dry-run is for --kind")
	case !flags.Changed("sql") && !flags.Changed("parameters"):
		return usagef("amend needs a new text, --sql, or new --parameters")
	case flags.Changed("statement") && m.to.Statement < 1:
		return usagef("--statement must be at least 1")
	case strings.TrimSpace(m.reason) == "":
		return usagef("amend needs a reason, which the audit keeps: say why with --reason")
	case m.to.SQL == "-" && m.to.Parameters == "-":
		return usagef("--sql and --parameters cannot both be standard input")
	case !m.yes && !m.dryRun && (!m.InTTY || m.to.SQL == "-" || m.to.Parameters == "-"):
		return usagef("amend changes what will be written: confirm it with --yes")
	}
	for _, text := range []*string{&m.to.SQL, &m.to.Parameters} {
		if err := said(m.In, text); err != nil {
			return err
		}
	}
	if flags.Changed("sql") && strings.TrimSpace(m.to.SQL) == "" || flags.Changed("parameters") && strings.TrimSpace(m.to.Parameters) == "" {
		return usagef("--sql or --parameters is empty: give it a value, or leave it out; no parameters are []")
	}
	return nil
}

// said replaces a flag's value @FILE by the file's content, and - by standard input.
func said(in io.Reader, value *string) error {
	var text []byte
	var err error
	if name, ok := strings.CutPrefix(*value, "@"); ok {
		text, err = os.ReadFile(name)
	} else if *value == "-" {
		text, err = io.ReadAll(in)
	} else {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the text of the amendment cannot be read: %w", err)
	}
	*value = strings.TrimRight(strings.TrimPrefix(string(text), "\ufeff"), "\r\n")
	return nil
}

func (m *amender) one(ctx context.Context, d *desk, id string) error {
	if err := m.confirm(ctx, m.yes, fmt.Sprintf("amend %s? The audit keeps the old text.", printable(id))); err != nil {
		return err
	}
	done, err := d.Amend(ctx, id, m.to, m.by(m.reason))
	switch {
	case err != nil:
		return explain(id, err)
	case m.json():
		return printJSON(m.Out, done)
	}
	fmt.Fprintf(m.Out, "%s: statement %d amended; it is still parked: bed-job retry %[1]s\n", done.ID, done.Statement)
	m.note(done.Unprepared)
	return nil
}

// note says why a data source could not be asked; empty for nothing.
func (m *amender) note(unasked string) {
	if unasked != "" {
		fmt.Fprintf(m.Err, "note: its data source could not be asked whether it takes the text: %s\n", printable(m.redact(unasked)))
	}
}

// amended is a bulk amendment as JSON shows it.
type amended struct {
	acted
	*ops.AmendedAll
	Trial *tried `json:"trial"`
}

func (m *amender) all(ctx context.Context, d *desk) error {
	m.State = ops.Parked
	sel, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Selection, error) { return d.Select(ctx, m.Filter) })
	if err != nil {
		return err
	}
	if len(sel.IDs) == 0 && !m.json() {
		_, err := fmt.Fprintln(m.Err, "Nothing of that kind is parked: entries that wait are parked first.")
		return err
	}
	question := fmt.Sprintf("amend %s (counted at %s by the log's clock)? The audit keeps the old text.", entries(len(sel.IDs)), sel.At.Format(time.RFC3339))
	if err := m.confirm(ctx, m.yes || m.dryRun, question); err != nil {
		return err
	}
	cfg := opsConfig(m.app, d.cfg)
	cfg.AnswerWithin *= manyTimes
	store, err := ops.New(d.log.Storage, cfg)
	if err != nil {
		return err
	}
	done, err := store.AmendAll(ctx, sel, m.to, m.by(m.reason), m.dryRun)
	if err != nil {
		return err
	}
	if m.json() {
		out := amended{acted{ops.Amend, sel.At.Format(time.RFC3339Nano), len(done.Changed), done.Gone, done.Left, done.Changed, nil, m.dryRun}, done, nil}
		if done.Trial != nil {
			t := triedOf(done.Tried, done.Trial)
			out.Trial = &t
		}
		return printJSON(m.Out, out)
	}
	if done.Trial != nil {
		fmt.Fprintf(m.Out, "tried on %s:\n", done.Tried)
		_ = printTrial(m.app, done.Tried, done.Trial) // it only reports the trial's own error
	}
	m.note(done.Untried)
	for _, k := range done.Kept {
		fmt.Fprintf(m.Out, "%s not amended, such as %s: %s\n", entries(k.Entries), cmp.Or(k.Oldest, "-"), printable(m.redact(k.Why)))
	}
	outcome := "amended; they are still parked: bed-job retry --kind " + done.Kind
	if m.dryRun || len(done.Changed) == 0 {
		outcome = map[bool]string{true: "would be "}[m.dryRun] + "amended"
	}
	fmt.Fprintf(m.Out, "%s of %d %s\n", entries(len(done.Changed)), len(sel.IDs), outcome)
	if done.Gone > 0 {
		fmt.Fprintf(m.Out, "%s gone: delivered or discarded since they were counted\n", entries(done.Gone))
	}
	return nil
}
