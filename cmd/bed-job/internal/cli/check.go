package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

// The exit statuses of check, which monitors know.
const (
	checkOK       = 0
	checkWarning  = 1
	checkCritical = 2
)

// thresholds are what a check compares with; below 0: none.
type thresholds struct {
	parkedWarning, parkedCritical int
	oldestWarning, oldestCritical time.Duration
}

var thresholdFlags = []string{"parked-warning", "parked-critical", "oldest-warning", "oldest-critical"}

func checkCommand(a *app) *cobra.Command {
	var t thresholds
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell a monitor in one line whether an operator has to look",
		Long: `Tell a monitor in one line whether an operator has to look: how many entries are parked,
how old the oldest is that waits to be delivered, and which data sources cannot be
reached. Without any threshold one parked entry is a warning. A data source that this
machine, or a job, cannot reach is critical. Reaching a threshold counts.

Exit status, as monitors know it: 0 all is well, 1 warning, 2 critical, 3 it is not
known: the log does not answer, or the command line or the configuration is wrong.`,
		Args: func(cmd *cobra.Command, args []string) error { return as(exitUnknown, noArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			set := cmd.Flags().Changed
			any := false
			for _, name := range thresholdFlags {
				any = any || set(name)
			}
			if !any {
				t.parkedWarning = 1
			}
			if set("parked-warning") && t.parkedWarning < 0 || set("parked-critical") && t.parkedCritical < 0 ||
				set("oldest-warning") && t.oldestWarning < 0 || set("oldest-critical") && t.oldestCritical < 0 {
				return as(exitUnknown, usagef(cmd, "a threshold must not be negative"))
			}
			return checkLog(cmd.Context(), a, t)
		},
	}
	a.configFlag(cmd)
	cmd.Flags().IntVar(&t.parkedWarning, "parked-warning", -1, "warning from so many parked entries on")
	cmd.Flags().IntVar(&t.parkedCritical, "parked-critical", -1, "critical from so many parked entries on")
	cmd.Flags().DurationVar(&t.oldestWarning, "oldest-warning", -1, "warning once an entry has waited so long, such as 15m")
	cmd.Flags().DurationVar(&t.oldestCritical, "oldest-critical", -1, "critical once an entry has waited so long")
	for _, name := range thresholdFlags {
		cmd.Flags().Lookup(name).DefValue = "0" // for a zero, --help shows no default
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return as(exitUnknown, usagef(cmd, "%v", err)) })
	return cmd
}

// checkLog is the command. Its line goes to standard output, which monitors read.
func checkLog(ctx context.Context, a *app, t thresholds) error {
	var status int
	var line string
	err := withDesk(ctx, a, logAndTargets, func(ctx context.Context, s *ops.Store, cfg *config) error {
		var o *ops.Overview
		err := a.asked(ctx, cfg, func(ctx context.Context) (err error) {
			o, err = s.Overview(ctx, ops.OverviewOptions{Cap: -1})
			return err
		})
		if err == nil {
			status, line = judge(o, t, unreachable(ctx, a, cfg))
		}
		return err
	})
	var usage *usageError
	switch {
	case errors.As(err, &usage):
		return as(exitUnknown, err)
	case err != nil:
		text, _, _ := strings.Cut(err.Error(), "\n")
		fmt.Fprintf(a.Out, "UNKNOWN: how many are parked cannot be told: %s\n", printable(redact(text, a.dsns...)))
		return as(exitUnknown, errReported)
	}
	fmt.Fprintln(a.Out, printable(line))
	if status == checkOK {
		return nil
	}
	return as(status, errReported)
}

// judge compares the state of a log with thresholds. down are the data sources that were not
// reached just now, and why.
func judge(o *ops.Overview, t thresholds, down map[string]string) (status int, line string) {
	parked, waiting, leased, oldest := 0, 0, 0, time.Duration(0)
	var why []string
	raise := func(to int, reason string) {
		status = max(status, to)
		why = append(why, reason)
	}
	for _, d := range o.DataSources {
		parked += d.Parked
		waiting += d.Waiting
		leased += d.Leased
		if d.Oldest != nil {
			oldest = max(oldest, o.At.Sub(*d.Oldest))
		}
		cause, unreached := down[d.Name]
		if d.Reachable != nil && !*d.Reachable {
			unreached, cause = true, d.ReachError
		}
		if unreached {
			raise(checkCritical, fmt.Sprintf("%s cannot be reached (%s)", d.Name, oneLine(cause, 120)))
		}
	}
	switch {
	case t.oldestCritical >= 0 && oldest >= t.oldestCritical && waiting+leased > 0:
		raise(checkCritical, "the oldest has waited for "+clockText(oldest))
	case t.oldestWarning >= 0 && oldest >= t.oldestWarning && waiting+leased > 0:
		raise(checkWarning, "the oldest has waited for "+clockText(oldest))
	}
	switch {
	case t.parkedCritical >= 0 && parked >= t.parkedCritical:
		status = checkCritical
	case t.parkedWarning >= 0 && parked >= t.parkedWarning:
		status = max(status, checkWarning)
	}
	line = []string{"OK", "WARNING", "CRITICAL"}[status] + ": "
	if len(why) > 0 {
		line += strings.ReplaceAll(strings.Join(why, "; "), "|", "/") + "; "
	}
	// The part after the bar is for graphs.
	return status, line + fmt.Sprintf("%d parked | parked=%d;%s;%s waiting=%d leased=%d oldest=%ds;%s;%s", parked,
		parked, orNothing(t.parkedWarning), orNothing(t.parkedCritical), waiting, leased,
		int(oldest.Seconds()), secondsOrNothing(t.oldestWarning), secondsOrNothing(t.oldestCritical))
}

func orNothing(n int) string {
	if n < 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func secondsOrNothing(d time.Duration) string {
	if d < 0 {
		return ""
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// unreachable dials each data source, side by side.
func unreachable(ctx context.Context, a *app, cfg *config) map[string]string {
	down := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, s := range cfg.targets {
		all.Go(func() {
			if why := s.unreachable(ctx); why != "" {
				mu.Lock()
				defer mu.Unlock()
				down[s.name] = redact(why, a.dsns...)
			}
		})
	}
	all.Wait()
	return down
}

// dialTimeout bounds how long a data source is waited for.
const dialTimeout = 3 * time.Second

// unreachable says why the data source cannot be reached; empty if it can.
func (s dataSource) unreachable(ctx context.Context) string {
	if s.problem != nil {
		return s.problem.Error()
	}
	t, err := s.target()
	switch {
	case err != nil:
		return err.Error()
	case t.File != "" || t.NoSideConnection:
		return "" // the first write makes a file that is not there yet
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	failed := make(chan error, 1)
	go func() { // a driver may not look at its context
		conn, err := t.Connector.Connect(ctx)
		if err == nil {
			err = conn.Close()
		}
		failed <- err
	}()
	select {
	case err = <-failed:
	case <-time.After(dialTimeout + time.Second):
		err = fmt.Errorf("no answer within %v", dialTimeout)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
