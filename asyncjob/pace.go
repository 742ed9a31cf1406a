package asyncjob

import (
	"sync"
	"time"
)

const (
	// yieldedPart is the part of what one job could have in flight that all jobs have
	// together while applications write.
	yieldedPart = 8
	// restMost bounds a worker's rest.
	restMost = time.Second
	// othersEvery is how often a drain asks who else writes to the data source at the most.
	othersEvery = 2 * time.Second
)

// pace bounds how many deliveries to a data source are in flight. After an outage it
// begins with one, and has twice as many each time that all in flight are through.
// While applications write to it too, all jobs together have an eighth of what one could
// have: what they take of the target, those writes wait for. A job's share may be less
// than one; then its worker rests between deliveries.
type pace struct {
	// most is how many may be in flight without a bound.
	most int

	mu sync.Mutex
	// window is how many may be after an outage; 0: no bound.
	window  int
	asked   time.Time
	writing bool
	jobs    int
}

// asks reports whether it is time to ask who else writes.
func (p *pace) asks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := time.Since(p.asked) >= othersEvery
	if due {
		p.asked = time.Now()
	}
	return due
}

// share says whether applications write to the data source now, and how many jobs
// deliver to it.
func (p *pace) share(writing bool, jobs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing, p.jobs = writing, max(1, jobs)
}

// broke notes an outage.
func (p *pace) broke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window = 1
}

// claim bounds a claim of most units by what may be in flight after an outage.
func (p *pace) claim(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.window == 0 {
		return most
	}
	return min(most, firstPerWorker*p.window)
}

// inFlight is how many deliveries may be in flight.
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

// delivered notes a delivery that took so long, and gives how long its worker rests.
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
	// All jobs' workers, each with its rests, are as many as there may be together.
	busy := float64(p.together()) / float64(p.jobs*p.workers())
	return min(restMost, time.Duration(float64(took)*(1/busy-1)))
}
