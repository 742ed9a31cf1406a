package asyncjob

import (
	"slices"
	"sync"
	"time"
)

const (
	// epochFor and epochOf are how long, and of how many deliveries, an epoch is
	// at the least.
	epochFor = 250 * time.Millisecond
	epochOf  = 8
	// tolerated is by how much deliveries may take longer than the quickest lately.
	tolerated = 1.25
	// quickestFor is for how long the quickest epoch counts, at least; compareEvery how
	// often all jobs slow down to find it, at full multiples of it by their clocks.
	quickestFor  = 30 * time.Second
	compareEvery = 10 * time.Second
	// restMost bounds a worker's rest.
	restMost = time.Second
)

// pace bounds how many deliveries to a data source are in flight while
// applications write to it too: what the job takes of the target, their writes
// wait for. It begins with one, and has one more in each epoch in which deliveries
// take no longer than they did with one, and half as many when they do: where
// the target has room a drain is quick all the same. While nobody else writes
// there is no bound.
//
// Several jobs share what one would have: their parts may be less than one, then a
// worker rests between deliveries. How quick the target is can only be seen while
// all of them have one part: they slow down at the same time, and begin anew when
// there are more or fewer of them.
type pace struct {
	// most is how many may be in flight without a bound.
	most int

	mu       sync.Mutex
	yielding bool
	jobs     int
	// parts are how many are in flight, in parts of which each makes one of jobs.
	parts int
	// back is what parts were before they were reduced to find the quickest; 0: they
	// were not. settling: the other jobs need not have reduced theirs yet.
	back     int
	settling bool
	compared time.Time
	// before and after are the quickest medians of epochs with one part: of the time
	// before since and after it. 0: none.
	before, after time.Duration
	since         time.Time
	// began is when the epoch did, took what its deliveries took.
	began time.Time
	took  []time.Duration
}

// share says whether applications write to the data source now, and how many jobs
// deliver to it.
func (p *pace) share(writing bool, jobs int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	jobs = max(1, jobs)
	if writing && (!p.yielding || jobs != p.jobs) {
		p.parts, p.back, p.settling, p.compared = 1, 0, true, now
		p.before, p.after, p.since = 0, 0, now
		p.next(now)
	}
	p.jobs, p.yielding = jobs, writing
}

// next begins an epoch.
func (p *pace) next(now time.Time) { p.began, p.took = now, p.took[:0] }

// inFlight is how many deliveries may be in flight.
func (p *pace) inFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.yielding {
		return p.most
	}
	return p.workers()
}

func (p *pace) workers() int { return (p.parts + p.jobs - 1) / p.jobs }

// delivered notes what a delivery took, and gives how long its worker rests.
func (p *pace) delivered(took time.Duration, now time.Time) (rest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.yielding {
		return 0
	}
	p.took = append(p.took, took)
	if len(p.took) >= epochOf && now.Sub(p.began) >= epochFor {
		slices.Sort(p.took)
		p.adapt(p.took[len(p.took)/2], now)
		p.next(now)
	}
	// This many workers, each of which rests for this part, are as many as there may be.
	share := float64(p.parts) / float64(p.jobs*p.workers())
	return min(restMost, time.Duration(float64(took)*(1/share-1)))
}

// adapt decides how many may be in flight in the next epoch.
func (p *pace) adapt(median time.Duration, now time.Time) {
	if p.settling {
		p.settling = false
		return
	}
	if p.parts == 1 {
		p.saw(median, now)
	}
	best := p.after
	if p.before > 0 && (best == 0 || p.before < best) {
		best = p.before
	}
	switch {
	case p.back > 0:
		p.parts, p.back, p.compared = p.back, 0, now
	case float64(median) > tolerated*float64(best):
		p.parts = max(1, p.parts/2)
	case p.parts > 1 && now.Truncate(compareEvery).After(p.compared):
		p.back, p.parts, p.settling = p.parts, 1, true
	// One less than without a bound: then units are delivered one by one, and
	// what they take can be compared.
	case p.parts < max(1, p.most-1)*p.jobs:
		p.parts++
	}
}

func (p *pace) saw(median time.Duration, now time.Time) {
	if now.Sub(p.since) >= quickestFor {
		p.before, p.after, p.since = p.after, 0, now
	}
	if p.after == 0 || median < p.after {
		p.after = median
	}
}
