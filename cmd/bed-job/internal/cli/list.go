package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// pageSize is how many units are read from the log at once.
const pageSize = 500

func listCommand(a *app) *cobra.Command {
	var f filters
	var limit int
	var verify bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the entries of the log, oldest first",
		Long: "List the entries of the log, oldest first: one line for each unit of delivery, with its SQL\nshortened and without parameters (see show). With --verify the targets are asked\nwhether each is applied. If there are more than --limit, standard error says so.\n" +
			verdictHelp + "\n" + jsonHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.read(cmd); err != nil {
				return err
			}
			if limit < 0 {
				return usagef("--limit must not be negative")
			}
			return a.withConfig(cmd.Context(), func(log boundedLog, cfg *config) error {
				list := logList{app: a, log: log, cfg: cfg, filters: f, limit: limit}
				if verify {
					list.verifier = ops.NewVerifier(log.Missing, opsConfig(a, cfg))
					defer list.verifier.Close()
				}
				print := list.printTable
				if a.json() {
					print = list.printJSON
				}
				err := print(cmd.Context())
				if err == nil && list.more {
					fmt.Fprintf(a.Err, "There are more than %d: see all with --limit 0, or count them with \"bed-job kinds\" and \"bed-job stats\".\n", limit)
				}
				return err
			})
		},
	}
	a.logFlags(cmd)
	filterFlags(a, cmd, &f)
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most N entries (0: all)")
	cmd.Flags().BoolVar(&verify, "verify", false, "ask the targets whether each entry is already applied")
	return cmd
}

// eachPage reads one page after the other, until there are no more or limit is reached; 0 is
// none. next is the After of the next page.
func eachPage[T any](limit int, read func(ops.Page) (items []T, next string, err error), do func([]T) error) error {
	after, left := "", cmp.Or(limit, math.MaxInt)
	for {
		items, next, err := read(ops.Page{After: after, Limit: min(left, pageSize)})
		if err == nil && len(items) > 0 {
			err = do(items)
		}
		left -= len(items)
		if after = next; err != nil || next == "" || left == 0 {
			return err
		}
	}
}

// A logList is one run of the command list.
type logList struct {
	*app
	log boundedLog
	cfg *config
	filters
	limit    int
	more     bool
	verifier *ops.Verifier // nil: the targets are not asked
}

// each pages through the units, with their verdicts on request.
func (l *logList) each(ctx context.Context, do func([]*entry.Unit, []*ops.Judgement) error) error {
	read := func(p ops.Page) (units []*entry.Unit, next string, err error) {
		f, _ := l.plain()
		f.After, f.Limit = p.After, p.Limit
		if units, err = l.log.List(ctx, f); err == nil && len(units) == f.Limit {
			next = units[f.Limit-1].ID
		}
		return units, next, err
	}
	if _, ok := l.plain(); !ok {
		d, err := openDesk(l.app, l.log, l.cfg)
		if err != nil {
			return err
		}
		read = func(p ops.Page) (units []*entry.Unit, next string, err error) {
			found, err := ask(ctx, l.log, func(ctx context.Context) (*ops.Entries, error) { return d.Entries(ctx, l.Filter, p) })
			if err != nil {
				return nil, "", err
			}
			for _, e := range found.Entries {
				units = append(units, e.Unit)
			}
			return units, found.Next, nil
		}
	}
	seen := 0
	limit := l.limit
	if limit > 0 {
		limit++ // one more tells that there are more
	}
	return eachPage(limit, read, func(units []*entry.Unit) error {
		if seen += len(units); l.limit > 0 && seen > l.limit {
			l.more, units = true, units[:len(units)-1]
		}
		verdicts := make([]*ops.Judgement, len(units))
		if l.verifier != nil {
			judged, err := l.verifier.Judge(ctx, units)
			if err != nil {
				return err
			}
			for i := range judged {
				verdicts[i] = &judged[i]
			}
		}
		return do(units, verdicts)
	})
}

func (l *logList) printTable(ctx context.Context) error {
	headings := []string{"ID", "DATA SOURCE", "STATE", "TRIES", "CREATED", "NEXT TRY", "LAST ERROR", "SQL"}
	if l.verifier != nil {
		headings = slices.Insert(headings, 3, "VERDICT")
	}
	t := table{width: l.width(), headings: headings, long: 2}
	var details []string
	err := l.each(ctx, func(units []*entry.Unit, verdicts []*ops.Judgement) error {
		for i, u := range units {
			now, next := u.ReadAt, "-" // the log's clock
			if !u.Parked && u.Behind == "" {
				next = until(now, ops.NextTry(u, l.minAge))
			}
			state := stateCell(u)
			if g := ops.GroupOf(u); g == ops.GroupHalfCompensated {
				state = ops.GroupTexts[g]
			} else if u.Undo != nil {
				state += ", " + string(g)
			}
			cells := []string{u.ID, u.DataSource, state}
			if j := verdicts[i]; j != nil {
				cells = append(cells, j.Short())
				if why := "data source " + u.DataSource + ": " + j.Note(); j.Note() != "" && !slices.Contains(details, why) {
					details = append(details, why)
				}
			}
			t.add(append(cells, strconv.Itoa(u.Tries), when(now, u.CreatedAt), next, u.LastError, sqlCell(u))...)
		}
		return t.print(l.Out)
	})
	for _, why := range details {
		l.complain(why)
	}
	if err == nil && !t.headed {
		_, err = fmt.Fprintln(l.Err, "The log holds nothing of that kind.")
	}
	return err
}

// stateCell is a state, with the entry it waits for or the number of entries behind it.
func stateCell(u *entry.Unit) string {
	state := string(ops.StateOf(u))
	if u.Behind != "" {
		state += " for " + u.Behind
	}
	if u.ContendedFrom > 0 {
		state += ", contended for " + span(u.ReadAt.Sub(u.ContendedSince()))
	}
	if u.Blocks > 0 {
		state += fmt.Sprintf(", blocks %d", u.Blocks)
	}
	return state
}

func sqlCell(u *entry.Unit) string {
	switch n := len(u.Statements); {
	case u.Unreadable != nil:
		return "(unreadable: " + u.Unreadable.Error() + ")"
	case n == 0:
		return "-"
	case n == 1:
		return u.Statements[0].SQL
	default:
		return fmt.Sprintf("(1 of %d) %s", n, u.Statements[0].SQL)
	}
}

// printJSON writes one array, page by page.
func (l *logList) printJSON(ctx context.Context) error {
	begin, end := "[\n  ", "[]\n"
	err := l.each(ctx, func(units []*entry.Unit, verdicts []*ops.Judgement) error {
		for i, u := range units {
			text, err := marshal(viewOf(l.app, u, verdicts[i]), "  ", "  ")
			if err != nil {
				return err
			}
			if _, err := io.WriteString(l.Out, begin+text); err != nil {
				return err
			}
			begin, end = ",\n  ", "\n]\n"
		}
		return nil
	})
	if err == nil {
		_, err = io.WriteString(l.Out, end)
	}
	return err
}

// filters are the flags for selecting entries.
type filters struct {
	ops.Filter
	parked bool
	state  string
}

func filterFlags(a *app, cmd *cobra.Command, f *filters) {
	flags := cmd.Flags()
	flags.StringVar(&f.DataSource, "data-source", "", "only entries of the data source `name`")
	flags.StringVar(&f.state, "state", "", "only entries in this state: waiting, leased or parked")
	flags.BoolVar(&f.parked, "parked", false, "only entries waiting for an operator: --state parked")
	flags.StringVar(&f.Text, "text", "", "only entries with exactly this text in their SQL or error")
	flags.StringVar(&f.Transaction, "transaction", "", "only entries of the soft transaction `id`")
	flags.StringVar(&f.Kind, "kind", "", "only entries of this `kind`, as printed by kinds or rehearse")
	flags.Var((*spanFlag)(&f.OlderThan), "older-than", "only entries at least this old, such as 30m, 24h or 7d")
	flags.Lookup("older-than").DefValue = "0" // for a zero, --help shows no default
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"waiting", "leased", "parked"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("data-source", completeDataSource(a))
}

// read makes the filter from the flags. It rejects a given but empty flag, such as from an unset
// shell variable: it would match every entry.
func (f *filters) read(cmd *cobra.Command) error {
	for _, name := range []string{"data-source", "state", "text", "transaction", "kind", "older-than"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && (flag.Value.String() == "" || flag.Value.String() == "0s") {
			return usagef("--%s is empty: give it a value, or leave it out", name)
		}
	}
	switch f.State = ops.State(f.state); f.State {
	case "", ops.Waiting, ops.Leased, ops.Parked:
	default:
		return usagef("--state is waiting, leased or parked, not %q", f.state)
	}
	if f.parked {
		if f.State != "" && f.State != ops.Parked {
			return usagef("--parked and --state %s exclude each other", f.state)
		}
		f.State = ops.Parked
	}
	f.Reveal = true // who has the DSN sees the log
	return nil
}

// given reports whether any flag selects.
func (f *filters) given() bool { return f.Filter != ops.Filter{Reveal: true} }

// plain returns the filter in the log's own form, if that can express it.
func (f *filters) plain() (txlog.Filter, bool) {
	return txlog.Filter{Parked: f.State == ops.Parked, DataSource: f.DataSource, OlderThan: f.OlderThan},
		f.Text == "" && f.Transaction == "" && f.Kind == "" && (f.State == "" || f.State == ops.Parked)
}

// completeDataSource completes the names of the configuration.
func completeDataSource(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
		d = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 && cmd.Name() != "list" {
			return nil, d
		}
		cfg, err := a.readConfig(logAndTargets)
		if err != nil {
			return nil, d
		}
		for _, s := range cfg.targets {
			names = append(names, s.name)
		}
		return names, d
	}
}
