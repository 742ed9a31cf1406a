package asyncjob

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Counts says what happened to the claimed units. Each of them is counted in
// exactly one of Delivered, Failed, Parked, PushedBack, Refused and Lost.
type Counts struct {
	// Claimed units were taken from the log.
	Claimed int
	// Delivered units are applied; their entries are removed, or will be
	// delivered once more if the removal failed until the lease was lost.
	Delivered int
	// Assumed counts those of Delivered that are concluded from a duplicate
	// key which was met after an attempt of unknown outcome.
	Assumed int
	// Failed units had a try that counts, and rest until their next.
	Failed int
	// Parked units were left for an operator in this round.
	Parked int
	// PushedBack units were given back without a try.
	PushedBack int
	// Refused units had been refused and their callers told; their entries had come
	// back and are removed. So are those whose group has turned back. String leaves
	// them out.
	Refused int
	// Lost units have nothing known of them: their lease was lost, or what was
	// found out could not be written to the log.
	Lost int
}

// of gives the count of the units that became k.
func (c *Counts) of(k kind) *int {
	return [kinds]*int{lost: &c.Lost, delivered: &c.Delivered, failed: &c.Failed, parked: &c.Parked, pushedBack: &c.PushedBack, refused: &c.Refused}[k]
}

func (c *Counts) add(o Counts) {
	c.Claimed += o.Claimed
	c.Assumed += o.Assumed
	for k := range kinds {
		*c.of(k) += *o.of(k)
	}
}

// DataSourceReport is what a round did for one data source.
type DataSourceReport struct {
	Counts
	// Unreachable is why the data source could not be reached or took no
	// writes, or nil. A data source found unreachable has no units claimed.
	Unreachable error
	// Blocked is why units of it cannot be delivered until an operator acts: the
	// data source is unknown, its settings cannot be applied, rights or a table are
	// missing. nil when there is nothing of that kind.
	Blocked error
	// Purge is why its receipts could not be erased or purged for want of
	// rights, or nil. They pile up until an operator acts.
	Purge error
	// Paused: operators have paused it, nothing is delivered until they resume it. It is
	// not known of one that is unreachable.
	Paused bool
	// Unknown is whether the log names a data source that is not among the
	// job's targets.
	Unknown bool
}

// Report is what a round did.
type Report struct {
	// Counts are the sums over all data sources.
	Counts
	// DataSources holds a report for each data source that had units in the
	// log that are not parked, or whose receipts could not be purged.
	DataSources map[string]DataSourceReport
	// Duration is how long the round took, or has taken so far.
	Duration time.Duration
}

// String is the report in one line.
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

// tally gathers what a round does, for the report.
type tally struct {
	job   *Job
	start time.Time

	mu   sync.Mutex
	rows map[string]DataSourceReport
	errs []error
	// waiting are the data sources with messages that wait for others.
	waiting []string
}

func newTally(j *Job) *tally {
	return &tally{job: j, start: time.Now(), rows: map[string]DataSourceReport{}}
}

// wait notes that messages of a data source wait for others.
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

// note changes the report of a data source and tells who watches.
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
