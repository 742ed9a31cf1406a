package asyncjob

import (
	"sync"
	"time"
)

const (
	// yieldedPart is 8 for an eighth: while applications write, all jobs together have that
	// part of one job's maximum in flight.
	yieldedPart = 8
	// restMost bounds a worker's rest.
	restMost = time.Second
	// othersEvery is the minimum time between two queries of a drain for other writers.
	othersEvery = 2 * time.Second
)

// pace bounds the number of deliveries in flight to a data source. After an outage it begins
// with one, and doubles each time that all in flight are through. While applications also
// write to it, all jobs together have an eighth of one job's maximum, because deliveries take
// resources from these writes. A job's share may be less than one; then its worker rests
// between deliveries.
type pace struct {
	// most is the number in flight without a bound.
	most int

	mu sync.Mutex
	// window is the bound after an outage; 0 means no bound.
	window  int
	asked   time.Time
	writing bool
	jobs    int
}

// asks reports whether a query for other writers is due.
func (p *pace) asks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := time.Since(p.asked) >= othersEvery
	if due {
		p.asked = time.Now()
	}
	return due
}

// share sets whether applications write to the data source now, and how many jobs deliver to
// it.
func (p *pace) share(writing bool, jobs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing, p.jobs = writing, max(1, jobs)
}

// broke records an outage.
func (p *pace) broke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window = 1
}

// claim bounds a claim of most units by the window after an outage.
func (p *pace) claim(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.window == 0 {
		return most
	}
	return min(most, firstPerWorker*p.window)
}

// inFlight returns the maximum number of deliveries in flight.
func (p *pace) inFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.most
	if p.writing {
		n = p.workers()
	}
	if p.window > 0 {
		n = min(n, p.window)
	}
	return n
}

func (p *pace) together() int { return max(1, p.most/yieldedPart) }

func (p *pace) workers() int { return (p.together() + p.jobs - 1) / p.jobs }

// delivered records a delivery of this duration, and returns how long its worker rests.
func (p *pace) delivered(took time.Duration) (rest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.window > 0 {
		if p.window++; p.window >= p.most {
			p.window = 0
		}
	}
	if !p.writing {
		return 0
	}
	// All jobs' workers, with their rests, add up to the joint share.
	busy := float64(p.together()) / float64(p.jobs*p.workers())
	return min(restMost, time.Duration(float64(took)*(1/busy-1)))
}
