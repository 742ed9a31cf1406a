package txlog

import (
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// manyClaimed is the number of claimed units from which claims begin after
	// what was claimed.
	manyClaimed = 1000
	// lateCommit is how long after its time was set a row may become visible.
	lateCommit = 2 * time.Second
	// quickLook is what a look from the beginning takes while nothing is in its
	// way. A slow one is repeated only after a multiple of the time that it took,
	// so many that looks are less than one in a hundred of the claims of a job
	// that always has something to claim, and after lookEvery at the latest.
	quickLook = 10 * time.Millisecond
	slowLooks = 500
	lookEvery = time.Minute
)

// reach is how far claims have emptied the index of a data source. Claimed units
// leave their old index entries there, in front of all that is due. They are
// erased as soon as no transaction may see them any more; while a snapshot is
// held in the log's database (a backup, a forgotten session) they stay, and a
// claim from the beginning of the index reads them all.
//
// So claims begin where the last one ended, once many units were claimed. Rows
// may still appear further in front: one that was locked by a claim which failed,
// one that was committed very late, or any after the log's clock was set back. A
// look from the beginning, which is made as often as it is cheap, finds them.
type reach struct {
	mu sync.Mutex
	// claimed units since a quick look from the beginning.
	claimed int
	// from is the next_try_time before which nothing is left.
	from int64
	// whole is when a claim looks from the beginning again.
	whole time.Time
}

// look is what a claim has seen.
type look struct {
	// from is where it began, took how long it took.
	from int64
	took time.Duration
	// full: there may be more after it.
	full bool
	// last is the next_try_time of the last unit found. settled is the one up to
	// which everything that will be in the log is there and old enough. 0: none
	// was found.
	last, settled int64
}

// emptied is a data source whose index is empty up to a time.
type emptied struct {
	name string
	from int64
}

// known are the data sources whose claims do not look from the beginning now, in
// lexical order.
func (c *claimer) known(now time.Time) (all []emptied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, r := range c.reaches {
		if from := r.begin(now); from > atOnce {
			all = append(all, emptied{name, from})
		}
	}
	slices.SortFunc(all, func(a, b emptied) int { return strings.Compare(a.name, b.name) })
	return all
}

// begin gives where a claim begins.
func (r *reach) begin(now time.Time) (from int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed < manyClaimed || !now.Before(r.whole) {
		return atOnce
	}
	return r.from
}

// end notes what a claim has seen that was committed.
func (r *reach) end(l look, claimed int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claimed += claimed
	if l.settled != 0 {
		if r.from = l.settled; l.full {
			r.from = min(l.last, l.settled)
		}
	}
	if l.took == 0 || l.from > atOnce {
		return
	}
	r.whole = now.Add(min(slowLooks*l.took, lookEvery))
	if l.took <= quickLook {
		r.claimed = claimed
	}
}
