package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/txlog"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	// exitUnknown is the exit status of check, doctor and rehearse when they cannot tell.
	exitUnknown = 3
)

// An app is the environment of one invocation, and makes the commands. Each command is in the file
// of its name; retry, park and discard share act.go, pause, resume and limit control.go.
type app struct {
	In       io.Reader
	Out, Err io.Writer
	// InTTY, OutTTY and ErrTTY mark terminals.
	InTTY, OutTTY, ErrTTY bool
	Getenv                func(string) (string, bool)
	Now                   func() time.Time
	// Width returns the columns of Out's terminal; below 1, or a nil function, without one.
	Width func() int
	// Open opens a configured transaction log; create also creates missing tables.
	Open func(ctx context.Context, log dataSource, create bool) (txlog.Storage, error)

	configPath string
	// logName is the log to work on, of several.
	logName    string
	logFormat  string
	logLevel   string
	logTimeout time.Duration
	output     output
	// minAge is how old an entry must be before the job touches it.
	minAge time.Duration
	// dsns and access belong to the configured data sources. No message may hold their secrets.
	dsns   []string
	access []*access.Access
}

// Main runs the process's own command line and returns its exit status.
func Main() int {
	a := &app{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTTY: terminal(os.Stdin), OutTTY: terminal(os.Stdout), ErrTTY: terminal(os.Stderr),
		Getenv: os.LookupEnv, Now: time.Now,
		Open: openLog, Width: func() int {
			width, _, _ := term.GetSize(int(os.Stdout.Fd()))
			return width
		},
	}
	ctx, stop := withSignals(context.Background())
	defer stop()
	return a.run(ctx, os.Args[1:])
}

// unknownWidth is the assumed width of a terminal of unknown width.
const unknownWidth = 80

// width returns the number of columns for output; 0 means no limit, because Out is not a terminal.
func (a *app) width() int {
	n := 0
	if a.Width != nil {
		n = max(a.Width(), 0)
	}
	if n == 0 && a.OutTTY {
		n = unknownWidth
	}
	return n
}

func terminal(f *os.File) bool {
	return isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd())
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if a.logFormat == "" {
		a.logFormat = logFormatIn(args) // the flags may not have been read so far
	}
	failure, mistake := exitFailure, exitUsage
	switch cmd.Name() {
	case "run", "console":
		if a.logFormat == "" && !a.ErrTTY {
			a.logFormat = "json" // as its log lines are
		}
	case "check", "doctor", "rehearse":
		failure, mistake = exitUnknown, exitUnknown
	}
	var usage usageError
	var known reported
	switch {
	case errors.As(err, &known):
		return int(known)
	case errors.As(err, &usage):
		a.fail(usage.Error(), fmt.Sprintf("Run %q for how to use it.", cmd.CommandPath()+" --help"))
		return mistake
	}
	for line := range strings.SplitSeq(a.redact(err.Error()), "\n") {
		a.fail(strings.TrimPrefix(line, "ops: "), "")
	}
	return failure
}

// A reported error is the exit status of a command that has already printed its failure.
type reported int

func (reported) Error() string { return "failed" }

const errReported = reported(exitFailure)

// judged is the result of a command that looks for problems: it found some, or could not see all.
func judged(found, unseen bool) error {
	switch {
	case found:
		return errReported
	case unseen:
		return reported(exitUnknown)
	}
	return nil
}

// A usageError is a mistake in the command line.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bed-job",
		Short: "Deliver the transaction log of soft transactions, and inspect it",
		Long: `bed-job delivers logged writes that may not have arrived, and lets an operator inspect,
retry and discard those that cannot be delivered.

Exit status: 0 success, 1 failure, 2 wrong command line; check, doctor and rehearse have
their own.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				hint = ", did you mean " + strings.Join(s, " or ") + "?"
			}
			return usagef("unknown command %q%s", args[0], hint)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	root.PersistentFlags().StringVar(&a.logFormat, "log-format", "", "text or json (default: text on a terminal, json otherwise)")
	root.PersistentFlags().StringVar(&a.logLevel, "log-level", "info", "debug, info, warning or error")
	root.AddCommand(
		runCommand(a), listCommand(a), showCommand(a), tryCommand(a), skipCommand(a), checkCommand(a), watchCommand(a),
		kindsCommand(a), auditCommand(a), amendCommand(a), compensateCommand(a), rehearseCommand(a),
		statsCommand(a), doctorCommand(a), hashCommand(a), migrateCommand(a), schemaCommand(a), demoCommand(a), consoleCommand(a), versionCommand(a),
	)
	root.AddCommand(actionCommands(a)...)
	root.AddCommand(controlCommands(a)...)
	return root
}

// noArgs is cobra.NoArgs as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, %q was given", cmd.Name(), args[0])
	}
	return nil
}

// oneID is for the commands about one entry.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes one ID", cmd.Name())
	}
	return nil
}

// configFlags are for commands that open the log.
func (a *app) configFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.configPath, "config", "c", "", "configuration `file` (default $"+ConfigVariable+", else "+DefaultConfig+")")
	cmd.Flags().StringVar(&a.logName, "log", "", "the `name` of the log, if transactionLogDataSource lists several")
	cmd.Flags().DurationVar(&a.logTimeout, "log-timeout", defaultLogTimeout, "how long to wait for each answer of the transaction log")
}

// logFlags are for commands that also print results.
func (a *app) logFlags(cmd *cobra.Command) {
	a.configFlags(cmd)
	a.output = "table"
	cmd.Flags().VarP(&a.output, "output", "o", "table or json")
}

func (a *app) json() bool { return a.output == "json" }

// withConfig opens the transaction log for a command.
func (a *app) withConfig(ctx context.Context, f func(boundedLog, *config) error) error {
	cfg, err := a.readConfig(logAndTargets)
	if err != nil {
		return err
	}
	a.minAge = max(cfg.job.WithDefaults().MaxDeliveryTryDelay, 0)
	log, err := a.openBounded(ctx, cfg.log, false)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // an error means that an idle connection broke
	return f(log, cfg)
}

// readConfig looks at the flags of all commands, and reads the configuration file. Its
// errors never hold a DSN.
func (a *app) readConfig(p part) (*config, error) {
	if _, err := a.logger(); err != nil {
		return nil, err
	}
	if a.logTimeout <= 0 {
		return nil, usagef("--log-timeout must be more than 0")
	}
	inEnv, _ := a.Getenv(ConfigVariable)
	named := cmp.Or(a.configPath, inEnv)
	path := cmp.Or(named, DefaultConfig)
	src, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && named == "":
		return nil, fmt.Errorf("there is no %s in the working directory: name a configuration file with -c or in $%s", path, ConfigVariable)
	case err != nil:
		return nil, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	c, err := parseConfig(path, src, a.Getenv, p)
	if err != nil {
		return c, err
	}
	a.dsns, a.access = nil, nil
	for _, s := range slices.Concat(c.logs, c.targets) {
		a.dsns, a.access = append(a.dsns, s.dsn), append(a.access, s.access)
	}
	if p == logAndTargets || a.logName != "" {
		err = c.choose(a.logName)
	}
	return c, err
}

// confirm asks on the terminal, unless the operator is sure. It returns an error unless the answer is
// yes.
func (a *app) confirm(ctx context.Context, sure bool, question string) error {
	if sure {
		return nil
	}
	fmt.Fprintf(a.Err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case s := <-answer:
		if s == "y" || s == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.Join(ctx.Err(), errors.New("nothing was done"))
}

// by names the operator: the account of the process, and the machine. The user who called sudo or
// the environment's user name is only appended, with its source.
func (a *app) by(reason string) ops.By {
	who := processAccount()
	if host, err := os.Hostname(); err == nil {
		who += "@" + printable(host)
	}
	who = "bed-job " + safetext.Cut(who, 150)
	for _, name := range []string{"SUDO_USER", "USER"} {
		if said, ok := a.Getenv(name); ok && said != "" && said != processAccount() {
			who += fmt.Sprintf(" (%s %q)", name, safetext.Cut(strings.ToValidUTF8(said, "?"), 40))
			break
		}
	}
	return ops.By{Who: who, Reason: reason}
}

// processAccount returns the name of the process's account, regardless of its environment.
func processAccount() string {
	id := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(id); err == nil {
		return printable(u.Username)
	}
	if u, err := user.Current(); err == nil && id == "-1" { // an operating system without such numbers
		return printable(u.Username)
	}
	return "uid " + id
}
