package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options choose the measurements and their duration.
type Options struct {
	// Figures restricts the run to the figures for machines.
	Figures bool
	// Sections are those to run of writes, drain, claims and select; empty
	// means all.
	Sections string
	// Contenders keeps the contenders for writes with a matching name, and the bare driver for
	// comparison.
	Contenders string
	// Callers are how many there are in each scene.
	Callers []int
	// Scenes keeps the scenes with a matching name: "64", "1 1ms".
	Scenes string
	// Rounds is how many turns each contender gets in each scene.
	Rounds int
	// Within bounds the time of the run: once a section has used up its share
	// there are fewer rounds, but three at least. 0 means no bound.
	Within time.Duration
	// Turn is the measured time of each turn, and WarmUp the time of the load before it.
	Turn, WarmUp time.Duration
	// RoundTrip is the simulated round trip of the scenes with far servers.
	RoundTrip time.Duration
	// Prepared makes the application prepare its statement once. Otherwise each call sends text
	// and arguments. The MySQL driver then puts them together (interpolateParams), for one round
	// trip as in PostgreSQL.
	Prepared bool
	// DrainUnits is how many units a job finds waiting.
	DrainUnits int
	// ParkedFew and ParkedMany are the two numbers of parked rows for the comparison of claims.
	ParkedFew, ParkedMany int
	// Profiles is a directory for a CPU profile of each turn; empty means no profiles.
	Profiles string

	// Wrappers and Queues are contenders of other people.
	Wrappers []Wrapper
	Queues   []Queue
}

// Wrapper is another wrapper of database/sql drivers.
type Wrapper struct {
	Name string
	Open func(driver.Connector) (*sql.DB, error)
}

// Queue is a job system on PostgreSQL.
type Queue struct {
	Name string
	// Fill sets it up in the database of dsn, with one job for each statement. Workers run the
	// jobs on pool.
	Fill func(ctx context.Context, dsn string, pool *sql.DB, statement string, ids []int64) (Filled, error)
}

// Filled is a queue with work in it.
type Filled struct {
	// Drain lets the waiting workers begin. It returns when all jobs are done and recorded as
	// such.
	Drain func(context.Context) error
	Close func(context.Context) error
}

// onlyFigures is the number of callers in a scene that exists only for the figures.
const onlyFigures = 8

// parse reads the command line.
func (o *Options) parse(args []string, help io.Writer) error {
	full := flag.NewFlagSet("bench", flag.ContinueOnError)
	full.SetOutput(help)
	quick := full.Bool("quick", false, "a smaller run of the same, under a minute, for the figures alone")
	full.StringVar(&o.Sections, "sections", "", "those to run of writes,drain,claims,select (all)")
	full.StringVar(&o.Contenders, "contenders", "", "regular expression: only these contenders for writes (all)")
	o.Callers = []int{1, onlyFigures, 16, 64}
	full.StringVar(&o.Scenes, "scenes", "", `regular expression: only these scenes, such as "^64$" or "^1 1ms$" (all)`)
	full.IntVar(&o.Rounds, "rounds", 5, "turns of each contender in each scene")
	full.DurationVar(&o.Within, "within", 0, "fewer rounds, but three at least, when they take longer than this together (no bound)")
	full.DurationVar(&o.Turn, "turn", 250*time.Millisecond, "how long each turn is measured")
	full.DurationVar(&o.WarmUp, "warm-up", 100*time.Millisecond, "how long the load runs before that")
	full.DurationVar(&o.RoundTrip, "round-trip", time.Millisecond, "the simulated one, of far servers")
	full.BoolVar(&o.Prepared, "prepared", false, "the application prepares its statement once")
	full.IntVar(&o.DrainUnits, "drain-units", 10000, "units that a job finds waiting")
	full.IntVar(&o.ParkedFew, "parked-few", 10000, "parked rows, few")
	full.IntVar(&o.ParkedMany, "parked-many", 5000000, "parked rows, many")
	full.StringVar(&o.Profiles, "profiles", "", "directory for a CPU profile of each turn (none)")
	if err := full.Parse(args); err != nil {
		return err
	}
	if *quick {
		given := map[string]bool{}
		full.Visit(func(f *flag.Flag) { given[f.Name] = true })
		set(given, "within", &o.Within, 42*time.Second)
		set(given, "turn", &o.Turn, 200*time.Millisecond)
		set(given, "warm-up", &o.WarmUp, 60*time.Millisecond)
		set(given, "drain-units", &o.DrainUnits, 3000)
		set(given, "parked-many", &o.ParkedMany, 200000)
		o.Figures = true
	}
	return o.validate()
}

func set[T any](given map[string]bool, name string, to *T, v T) {
	if !given[name] {
		*to = v
	}
}

func (o *Options) validate() error {
	var errs []error
	for _, pattern := range []string{o.Contenders, o.Scenes} {
		if _, err := regexp.Compile(pattern); err != nil {
			errs = append(errs, err)
		}
	}
	for _, section := range strings.FieldsFunc(o.Sections, isComma) {
		if !slices.Contains([]string{"writes", "drain", "claims", "select"}, section) {
			errs = append(errs, fmt.Errorf("there is no section %q; there are writes, drain, claims and select", section))
		}
	}
	if len(o.Callers) == 0 || o.Rounds < 1 || o.Turn <= 0 || o.WarmUp <= 0 || o.RoundTrip <= 0 || o.DrainUnits < 1 || o.ParkedFew < 1 || o.ParkedMany < 1 {
		errs = append(errs, errors.New("callers, rounds, durations and numbers must be positive"))
	}
	return errors.Join(errs...)
}

// The sections' shares of Options.Within.
const (
	selectShare = 0.05
	writesShare = 0.65
	drainShare  = 0.18
	claimsShare = 0.12
)

// another reports whether a section goes on after n rounds.
func (o *Options) another(rounds int, start time.Time, share float64) bool {
	const least = 3
	if rounds >= o.Rounds {
		return false
	}
	used := time.Since(start).Seconds()
	// The next round takes as long as those before.
	next := used * float64(rounds+1) / float64(max(rounds, 1))
	return rounds < least || o.Within == 0 || next <= share*o.Within.Seconds()
}

func isComma(r rune) bool { return r == ',' || r == ' ' }

func (o *Options) runs(section string) bool {
	if o.Sections == "" {
		return true
	}
	return slices.Contains(strings.FieldsFunc(o.Sections, isComma), section)
}
