package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// flat bounds the growth of a resource from its least use in the second sixth to that in the last,
// besides a few connections more or less. Peaks under load come and go, but a leak also raises the
// least use: a byte for each write of an hour exceeds fewKiB.
const (
	flat    = 1.25
	fewKiB  = 1 << 10
	fewOpen = 8
)

func (m *marathon) judge() {
	m.t.Helper()
	bare := func(query string, want int) {
		m.t.Helper()
		if is := scan(m.t, m.bare, query); is != fmt.Sprint(want) {
			m.t.Errorf("%s is %s, not %d", query, is, want)
		}
	}
	n := m.writes()
	bare("SELECT COUNT(*) FROM line", n)
	bare("SELECT COUNT(DISTINCT n) FROM line", n)
	bare("SELECT SUM(n) FROM line", n*(n-1)/2)
	if left := scan(m.t, m.entries, "SELECT COUNT(*) FROM transaction_log"); left != "0" {
		m.t.Errorf("%s entries are left, %s of them parked", left, scan(m.t, m.entries, "SELECT COUNT(*) FROM transaction_log WHERE parked = 1"))
	}
	if m.drained.IsZero() {
		m.t.Error("the backlog of the outage was never gone")
	}
	told, pending := 0, 0
	for _, s := range m.samples[theApplication] {
		told += s.Delivered + s.Pending
		pending += s.Pending
	}
	out := m.rate * int(m.lasts/6/time.Millisecond) / 1000
	if told != n || pending == 0 {
		m.t.Errorf("%d of %d writes were answered, %d of them pending, of which %d were made in the outage", told, n, pending, out)
	}
	m.t.Logf("%d writes, %d of them left to the job; %d entries waited at most", told, pending, slices.Max(m.waiting))
	sixth := m.lasts / 6
	m.tell("second sixth", sixth, 2*sixth)
	m.tell("outage", 2*sixth, 3*sixth)
	m.tell("backlog", 3*sixth, m.drained.Sub(m.begun))
	m.tell("last sixth", 5*sixth, m.lasts)
	if !m.judged {
		return
	}
	made := quantile(m.within(theApplication, 2*sixth, 3*sixth), 0.5, func(s sample) int { return s.Pending })
	if float64(made) < 0.95*float64(m.rate)*m.every.Seconds() {
		m.t.Errorf("in the outage the writers made %d writes in %v, not %d a second: the machine is too busy for them", made, m.every, m.rate)
	}
	for _, role := range []string{theApplication, theJob} {
		for _, f := range []struct {
			what string
			few  int
			of   func(sample) int
		}{
			{"KiB of heap", fewKiB, func(s sample) int { return s.HeapKiB }},
			{"KiB resident", fewKiB, func(s sample) int { return s.RSSKiB }},
			{"goroutines", fewOpen, func(s sample) int { return s.Goroutines }},
			{"sockets", fewOpen, func(s sample) int { return s.Sockets }},
		} {
			early, late := m.within(role, sixth, 2*sixth), m.within(role, 5*sixth, m.lasts)
			if len(early) == 0 || len(late) == 0 {
				m.t.Errorf("%s: %d samples of the second sixth and %d of the last one: whether the %s stay flat is not known", role, len(early), len(late), f.what)
				continue
			}
			was, is := quantile(early, 0, f.of), quantile(late, 0, f.of)
			m.t.Logf("%s, %s: at least %d in the second sixth, %d in the last one", role, f.what, was, is)
			if float64(is) > flat*float64(was)+float64(f.few) {
				m.t.Errorf("%s: the %s do not stay flat", role, f.what)
			}
		}
	}
}

// within returns the samples of a process in a part of the run.
func (m *marathon) within(role string, from, to time.Duration) (in []sample) {
	for _, s := range m.samples[role] {
		if s.at-m.every >= from && s.at <= to {
			in = append(in, s.sample)
		}
	}
	return in
}

// tell logs the median of each figure in a part of the run.
func (m *marathon) tell(part string, from, to time.Duration) {
	for _, role := range []string{theApplication, theJob} {
		in := m.within(role, from, to)
		number := func(of func(sample) int) int { return quantile(in, 0.5, of) }
		lasted := func(of func(sample) time.Duration) time.Duration { return quantile(in, 0.5, of) }
		m.t.Logf("%s, %s, medians of %d samples of %v: %v", part, role, len(in), m.every, sample{
			HeapKiB: number(func(s sample) int { return s.HeapKiB }), RSSKiB: number(func(s sample) int { return s.RSSKiB }),
			Goroutines: number(func(s sample) int { return s.Goroutines }), Sockets: number(func(s sample) int { return s.Sockets }),
			Delivered: number(func(s sample) int { return s.Delivered }), Pending: number(func(s sample) int { return s.Pending }),
			P50: lasted(func(s sample) time.Duration { return s.P50 }), P99: lasted(func(s sample) time.Duration { return s.P99 }),
			Late: lasted(func(s sample) time.Duration { return s.Late }),
		})
	}
}

// quantile returns the q quantile of a figure, q below 1; zero without samples.
func quantile[T cmp.Ordered](in []sample, q float64, of func(sample) T) (v T) {
	list := make([]T, len(in))
	for i, s := range in {
		list[i] = of(s)
	}
	if slices.Sort(list); len(list) > 0 {
		v = list[int(q*float64(len(list)))]
	}
	return v
}
