package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// errNoDesk is for a log that is not in a database, which no configuration can
// name.
var errNoDesk = errors.New("the log is kept in no database")

// openDesk gives what an operator works at.
func openDesk(a *app, st txlog.Storage, cfg *config) (*ops.Store, error) {
	for {
		inner, ok := st.(interface{ Unwrap() txlog.Storage })
		if !ok {
			break
		}
		st = inner.Unwrap()
	}
	log, ok := st.(*txlog.SQLStorage)
	if !ok {
		return nil, errNoDesk
	}
	return ops.New(log, opsConfig(a, cfg))
}

// withDesk opens the log for a command of an operator. Each answer of the log is waited
// for as long as --log-timeout says.
func withDesk(ctx context.Context, a *app, p part, f func(context.Context, *ops.Store, *config) error) error {
	return a.withConfig(ctx, p, func(st txlog.Storage, cfg *config) error {
		store, err := openDesk(a, st, cfg)
		if err != nil {
			return err
		}
		return f(ctx, store, cfg)
	})
}

// filters are the flags that select entries.
type filters struct {
	ops.Filter
	parked bool
	state  string
}

func filterFlags(a *app, cmd *cobra.Command, f *filters) {
	flags := cmd.Flags()
	flags.StringVar(&f.DataSource, "data-source", "", "only those of the data source `name`")
	flags.StringVar(&f.state, "state", "", "only those that are waiting, leased or parked")
	flags.BoolVar(&f.parked, "parked", false, "only those that wait for an operator: --state parked")
	flags.StringVar(&f.Text, "text", "", "only those with this text in their SQL or error, as it is")
	flags.StringVar(&f.Transaction, "transaction", "", "only those of the soft transaction `id`")
	flags.DurationVar(&f.OlderThan, "older-than", 0, "only those at least so old, such as 30m or 24h")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"waiting", "leased", "parked"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("data-source", completeDataSource(a))
}

// read makes the filter of the flags. One that is given and selects nothing, such
// as by a variable of the shell that is not set, would have every entry match.
func (f *filters) read(cmd *cobra.Command) error {
	for _, name := range []string{"data-source", "state", "text", "transaction", "older-than"} {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed && (flag.Value.String() == "" || flag.Value.String() == "0s") {
			return usagef(cmd, "--%s is empty: give it a value, or leave it out", name)
		}
	}
	switch f.state {
	case "", string(ops.Waiting), string(ops.Leased), string(ops.Parked):
		f.State = ops.State(f.state)
	default:
		return usagef(cmd, "--state is waiting, leased or parked, not %q", f.state)
	}
	if f.parked {
		if f.State != "" && f.State != ops.Parked {
			return usagef(cmd, "--parked and --state %s exclude each other", f.state)
		}
		f.State = ops.Parked
	}
	if f.OlderThan < 0 {
		return usagef(cmd, "--older-than must not be negative")
	}
	f.Reveal = true // who has the DSN sees the log
	return nil
}

// given reports whether any flag selects.
func (f *filters) given() bool {
	return f.State != "" || f.DataSource != "" || f.Text != "" || f.Transaction != "" || f.OlderThan != 0
}

// plain gives the filter in the log's own form, if that can say all of it.
func (f *filters) plain() (txlog.Filter, bool) {
	return txlog.Filter{Parked: f.State == ops.Parked, DataSource: f.DataSource, OlderThan: f.OlderThan},
		f.Text == "" && f.Transaction == "" && (f.State == "" || f.State == ops.Parked)
}

// completeDataSource completes the names of the configuration.
func completeDataSource(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
		d = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 && cmd.Name() != "list" {
			return nil, d
		}
		cfg, err := a.readConfig(a.configPath, logAndTargets)
		if err != nil {
			return nil, d
		}
		for _, s := range cfg.targets {
			names = append(names, s.name)
		}
		return names, d
	}
}

// eachMatch pages through the entries that a filter selects.
func eachMatch(ctx context.Context, store *ops.Store, f ops.Filter, limit int, do func([]*txlog.Unit) error) error {
	for after := ""; ; {
		page, err := store.Entries(ctx, f, ops.Page{After: after, Limit: pageSize})
		if err != nil {
			return err
		}
		units := make([]*txlog.Unit, len(page.Entries))
		for i := range page.Entries {
			units[i] = page.Entries[i].Unit
		}
		if limit > 0 {
			units = units[:min(limit, len(units))]
		}
		if len(units) > 0 {
			if err := do(units); err != nil {
				return err
			}
		}
		if limit > 0 {
			if limit -= len(units); limit == 0 {
				return nil
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// clockText is an age for people: to the second.
func clockText(d time.Duration) string { return d.Round(time.Second).String() }
