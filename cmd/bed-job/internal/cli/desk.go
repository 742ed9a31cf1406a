package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// errNoDesk is for a log outside of a database. No configuration can name one.
var errNoDesk = errors.New("the log is kept in no database")

// A desk carries out an operator's commands. Call its methods through ask: that bounds each answer
// by --log-timeout.
type desk struct {
	*ops.Store
	app *app
	log boundedLog
	cfg *config
}

func openDesk(a *app, log boundedLog, cfg *config) (*desk, error) {
	store, err := newStore(log, opsConfig(a, cfg))
	return &desk{store, a, log, cfg}, err
}

func newStore(log boundedLog, cfg ops.Config) (*ops.Store, error) {
	st := log.Storage
	if wrapped, ok := st.(interface{ Unwrap() txlog.Storage }); ok { // tests keep it open
		st = wrapped.Unwrap()
	}
	sql, ok := st.(*txlog.SQLStorage)
	if !ok {
		return nil, errNoDesk
	}
	return ops.New(sql, cfg)
}

// withDesk opens the log for a command of an operator.
func withDesk(ctx context.Context, a *app, f func(*desk) error) error {
	return a.withConfig(ctx, func(log boundedLog, cfg *config) error {
		d, err := openDesk(a, log, cfg)
		if err != nil {
			return err
		}
		return f(d)
	})
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
