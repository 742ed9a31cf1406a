package asyncjob

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/claim"
)

// Counts are the outcomes of the claimed units. Each unit is counted in exactly one of
// Delivered, Failed, Parked, PushedBack, Refused and Lost.
type Counts struct {
	// Claimed units were taken from the log.
	Claimed int
	// Delivered units are applied. Their entries are removed; if the removal failed until the
	// lease was lost, they will be delivered once more.
	Delivered int
	// Assumed counts the units in Delivered that were concluded from a duplicate key after an
	// attempt with an unknown outcome.
	Assumed int
	// Failed units had a try that counts, and rest until the next.
	Failed int
	// Parked units were left for an operator in this round.
	Parked int
	// PushedBack units were given back without a try.
	PushedBack int
	// Refused units had been refused before, with an answer to their callers. Their entries had
	// come back and are removed. So are units whose group is being compensated. String omits
	// them.
	Refused int
	// Lost units have an unknown outcome: their lease was lost, or the outcome could not be
	// written to the log.
	Lost int
}

// of returns the count of the units that became k.
func (c *Counts) of(k claim.Kind) *int {
	return [...]*int{claim.Lost: &c.Lost, claim.Delivered: &c.Delivered, claim.Failed: &c.Failed, claim.Parked: &c.Parked, claim.PushedBack: &c.PushedBack, claim.Refused: &c.Refused}[k]
}

func (c *Counts) count(r claim.Result) {
	*c.of(r.Kind)++
	if r.Assumed {
		c.Assumed++
	}
}

func (c *Counts) add(o Counts) {
	c.Claimed += o.Claimed
	c.Assumed += o.Assumed
	for k := range claim.Open {
		*c.of(k) += *o.of(k)
	}
}

// DataSourceReport is the report of a round about one data source.
type DataSourceReport struct {
	Counts
	// Unreachable is the reason why the data source was unreachable or not writable, or nil. No
	// units of an unreachable data source are claimed.
	Unreachable error
	// Blocked is the reason why units wait for an operator: the data source is unknown, its
	// settings cannot be applied, rights or a table are missing. nil without such units.
	Blocked error
	// Purge is the reason why its receipts could not be erased or purged for lack of rights, or
	// nil. They pile up until an operator acts.
	Purge error
	// Paused means that operators have paused it: there are no deliveries until they resume it.
	// It is unknown for an unreachable data source.
	Paused bool
	// Unknown is set if the log names a data source that is not among the job's targets.
	Unknown bool
}

// Report is the report of a round.
type Report struct {
	// Counts are the sums over all data sources.
	Counts
	// DataSources holds a report for each data source with units in the log that are not
	// parked, or with a failed purge of receipts.
	DataSources map[string]DataSourceReport
	// Duration is how long the round took, or has taken so far.
	Duration time.Duration
}

// String returns the report in one line.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "claimed %d, delivered %d (assumed %d), failed %d, parked %d, pushed back %d, lost %d in %v",
		r.Claimed, r.Delivered, r.Assumed, r.Failed, r.Parked, r.PushedBack, r.Lost, r.Duration.Round(time.Millisecond))
	waiting := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.DataSources)) {
		why := ""
		switch ds := r.DataSources[name]; {
		case ds.Unknown:
			why = "unknown"
		case ds.Blocked != nil:
			why = "waiting for an operator"
		case ds.Unreachable != nil:
			why = "unreachable"
		case ds.Paused:
			why = "paused"
		default:
			continue
		}
		waiting[why] = append(waiting[why], name)
	}
	for _, why := range slices.Sorted(maps.Keys(waiting)) {
		b.WriteString("; " + why + ": " + strings.Join(waiting[why], ", "))
	}
	return b.String()
}

// tally collects the report of a round.
type tally struct {
	job   *Job
	start time.Time

	mu   sync.Mutex
	rows map[string]DataSourceReport
	errs []error
	// waiting lists the data sources with messages that wait for others.
	waiting []string
}

func newTally(j *Job) *tally {
	return &tally{job: j, start: time.Now(), rows: map[string]DataSourceReport{}}
}

// wait records that messages of a data source wait for others.
func (t *tally) wait(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.waiting, name) {
		t.waiting = append(t.waiting, name)
	}
}

func (t *tally) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

// note changes the report of a data source and calls OnProgress.
func (t *tally) note(name string, change func(*DataSourceReport)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rows[name]
	change(&row)
	t.rows[name] = row
	if watch := t.job.cfg.OnProgress; watch != nil {
		t.job.watching.Lock()
		defer t.job.watching.Unlock()
		t.job.guard(func() { watch(t.report()) })
	}
}

func (t *tally) result() (Report, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report(), errors.Join(t.errs...)
}

// report is called with mu held.
func (t *tally) report() Report {
	rep := Report{DataSources: maps.Clone(t.rows), Duration: time.Since(t.start)}
	for _, row := range t.rows {
		rep.add(row.Counts)
	}
	return rep
}
