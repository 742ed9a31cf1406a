package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/ops"
)

// The exit statuses of check follow the conventions of monitors.
const (
	checkOK       = 0
	checkWarning  = 1
	checkCritical = 2
)

// thresholds are the limits of a check; below 0 means no limit.
type thresholds struct {
	parkedWarning, parkedCritical int
	oldestWarning, oldestCritical time.Duration
}

var thresholdFlags = []string{"parked-warning", "parked-critical", "oldest-warning", "oldest-critical"}

func checkCommand(a *app) *cobra.Command {
	t := thresholds{-1, -1, -1, -1}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Report to a monitor in one line whether an operator is needed",
		Long: `Report to a monitor in one line whether an operator is needed: the number of parked
entries, the age of the oldest waiting one, and the unreachable data sources. Without any
threshold one parked entry is a warning. A data source that this machine or a job cannot
reach is critical; a paused one with waiting entries is a warning. A group that is half
compensated is critical. Reaching a threshold counts.

Exit status, following the conventions of monitors: 0 all is well, 1 warning, 2 critical,
3 unknown: the log does not answer, or the command line or the configuration is wrong.

JSON (-o json): an object with status (OK, WARNING, CRITICAL or UNKNOWN), reasons, parked,
waiting, leased, halfCompensated, oldestSeconds (of the oldest waiting entry), contended and
contendedSeconds (the number of entries held up by other transactions, and the time),
paused and unreachable (names of data sources), and error (why it is UNKNOWN). The exit status is the same.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set := cmd.Flags().Changed
			if !slices.ContainsFunc(thresholdFlags, set) {
				t.parkedWarning = 1
			}
			if set("parked-warning") && t.parkedWarning < 0 || set("parked-critical") && t.parkedCritical < 0 {
				return usagef("a threshold must not be negative")
			}
			if set("parked-warning") && set("parked-critical") && t.parkedCritical < t.parkedWarning ||
				set("oldest-warning") && set("oldest-critical") && t.oldestCritical < t.oldestWarning {
				return usagef("a critical threshold must not be below the warning of the same kind: it would never warn")
			}
			return checkLog(cmd.Context(), a, t)
		},
	}
	a.logFlags(cmd)
	cmd.Flags().IntVar(&t.parkedWarning, "parked-warning", -1, "warn at this many parked entries")
	cmd.Flags().IntVar(&t.parkedCritical, "parked-critical", -1, "critical at this many parked entries")
	cmd.Flags().Var((*spanFlag)(&t.oldestWarning), "oldest-warning", "warn once an entry has waited this long, such as 15m or 2d")
	cmd.Flags().Var((*spanFlag)(&t.oldestCritical), "oldest-critical", "critical once an entry has waited this long")
	for _, name := range thresholdFlags {
		cmd.Flags().Lookup(name).DefValue = "0" // for a zero, --help shows no default
	}
	return cmd
}

// checked is the result of a check in JSON.
type checked struct {
	Status          string   `json:"status"`
	Reasons         []string `json:"reasons"`
	Parked          int      `json:"parked"`
	Waiting         int      `json:"waiting"`
	Leased          int      `json:"leased"`
	HalfCompensated int      `json:"halfCompensated"`
	OldestSeconds   int      `json:"oldestSeconds"`
	// Contended entries wait because other transactions were in their way, the first for
	// ContendedSeconds.
	Contended        int `json:"contended"`
	ContendedSeconds int `json:"contendedSeconds"`

	Paused      []string `json:"paused"`
	Unreachable []string `json:"unreachable"`
	Error       string   `json:"error,omitempty"`

	status int
}

var statusNames = []string{checkOK: "OK", checkWarning: "WARNING", checkCritical: "CRITICAL", exitUnknown: "UNKNOWN"}

// checkLog is the command. Its line goes to standard output for monitors to read.
func checkLog(ctx context.Context, a *app, t thresholds) error {
	found := &checked{Reasons: []string{}, Paused: []string{}, Unreachable: []string{}}
	err := withDesk(ctx, a, func(d *desk) error {
		o, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Overview, error) { return d.Overview(ctx, ops.OverviewOptions{Cap: -1}) })
		if err == nil {
			found.judge(o, t, unreachable(ctx, a, d.cfg))
		}
		return err
	})
	var usage usageError
	if errors.As(err, &usage) {
		return err
	}
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		found.status, found.Error = exitUnknown, a.redact(text)
	}
	found.Status = statusNames[found.status]
	if a.json() {
		err = printJSON(a.Out, found)
	} else {
		_, err = fmt.Fprintln(a.Out, printable(found.line(t)))
	}
	if err == nil && found.status != checkOK {
		err = reported(found.status)
	}
	return err
}

// judge compares the state of a log with thresholds. down names the data sources that are
// unreachable now, with the reasons.
func (c *checked) judge(o *ops.Overview, t thresholds, down map[string]string) {
	oldest := time.Duration(0)
	raise := func(to int, reason string) {
		c.status = max(c.status, to)
		c.Reasons = append(c.Reasons, reason)
	}
	for _, d := range o.DataSources {
		c.Parked += d.Parked
		c.Waiting += d.Waiting
		c.Leased += d.Leased
		if d.Oldest != nil {
			oldest = max(oldest, o.At.Sub(*d.Oldest))
		}
		cause, unreached := down[d.Name]
		if d.Reachable != nil && !*d.Reachable {
			unreached, cause = true, d.ReachError
		}
		if unreached {
			c.Unreachable = append(c.Unreachable, d.Name)
			raise(checkCritical, fmt.Sprintf("%s cannot be reached (%s)", d.Name, oneLine(cause, 120)))
		}
		if d.Paused {
			c.Paused = append(c.Paused, d.Name)
			if d.Waiting > 0 {
				raise(checkWarning, fmt.Sprintf("%s is paused and has %d waiting", d.Name, d.Waiting))
			} else {
				raise(checkOK, d.Name+" is paused")
			}
		}
	}
	if c.HalfCompensated = o.HalfCompensated; o.HalfCompensated > 0 {
		raise(checkCritical, fmt.Sprintf("half compensated: %d (see bed-job list --parked)", o.HalfCompensated))
	}
	if c.Contended = o.Contended; o.ContendedSince != nil {
		c.ContendedSeconds = int(o.At.Sub(*o.ContendedSince).Seconds())
		raise(checkOK, fmt.Sprintf("other transactions have been in the way of %d for up to %s", o.Contended, span(o.At.Sub(*o.ContendedSince))))
	}
	c.OldestSeconds = int(oldest.Seconds())
	if status := reaches(oldest, t.oldestWarning, t.oldestCritical); status != checkOK && c.Waiting+c.Leased > 0 {
		raise(status, "the oldest has waited for "+span(oldest))
	}
	c.status = max(c.status, reaches(c.Parked, t.parkedWarning, t.parkedCritical))
}

// reaches compares with the thresholds of one kind.
func reaches[T int | time.Duration](n, warning, critical T) int {
	switch {
	case critical >= 0 && n >= critical:
		return checkCritical
	case warning >= 0 && n >= warning:
		return checkWarning
	}
	return checkOK
}

// line is a check for monitors; the part after the bar is for graphs.
func (c *checked) line(t thresholds) string {
	if c.Error != "" {
		return "UNKNOWN: how many are parked is unknown: " + c.Error
	}
	line := c.Status + ": "
	if len(c.Reasons) > 0 {
		line += strings.ReplaceAll(strings.Join(c.Reasons, "; "), "|", "/") + "; "
	}
	return line + fmt.Sprintf("%d parked | parked=%d;%s;%s waiting=%d leased=%d oldest=%ds;%s;%s", c.Parked,
		c.Parked, orNothing(float64(t.parkedWarning)), orNothing(float64(t.parkedCritical)), c.Waiting, c.Leased,
		c.OldestSeconds, orNothing(t.oldestWarning.Seconds()), orNothing(t.oldestCritical.Seconds()))
}

func orNothing(threshold float64) string {
	if threshold < 0 {
		return ""
	}
	return strconv.FormatFloat(threshold, 'f', -1, 64)
}

// unreachable dials each data source, side by side.
func unreachable(ctx context.Context, a *app, cfg *config) map[string]string {
	down := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, s := range cfg.targets {
		all.Go(func() {
			if err := s.unreachable(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				down[s.name] = a.redact(err.Error())
			}
		})
	}
	all.Wait()
	return down
}

// unreachable returns why the data source is unreachable; nil if it is reachable.
func (s dataSource) unreachable(ctx context.Context) error {
	if s.problem != nil {
		return s.problem
	}
	t, err := s.target()
	if err != nil || t.File != "" || t.NoSideConnection {
		return err // the first write makes a file that is not there yet
	}
	_, err = ops.Within(ctx, ops.VerifyTimeout, func(ctx context.Context) (any, error) {
		conn, err := t.Connector.Connect(ctx)
		if err == nil {
			err = errors.Join(attempt.Ping(ctx, conn), conn.Close()) // Kafka's connects at the first request
		}
		return nil, err
	})
	var key *access.Error
	if errors.As(err, &key) {
		return key // the rest of the text could cut it off
	}
	return err
}
