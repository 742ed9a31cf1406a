package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

type overviewView struct {
	O *ops.Overview
	totals
	kindList
	Sources []sourceView
	Ranges  []tab
	Charts  []chart
}

// sourceView is a data source with its numbers.
type sourceView struct {
	ops.DataSource
	Anchor string
	l      *language
}

// Capped is its number of entries in a state.
func (s sourceView) Capped(state string) string {
	n := map[string]int{"waiting": s.Waiting, "leased": s.Leased, "parked": s.DataSource.Parked}[state]
	return s.l.count(n, slices.Contains(s.More, ops.State(state)))
}

// ranges are how many minutes charts go back; the usual one comes without a parameter.
var ranges = []struct {
	minutes int
	text    string
}{{15, "15 minutes"}, {usualMinutes, "6 hours"}, {24 * 60, "a day"}, {168 * 60, "7 days"}}

const usualMinutes = 6 * 60

const kindsOnOverview = 5

func (s *site) overviewPage(in *input) (any, error) {
	minutes, l := usualMinutes, in.l
	for _, h := range ranges {
		if q := in.said; q.Get("minutes") == strconv.Itoa(h.minutes) || q.Get("hours") == strconv.Itoa(h.minutes/60) && h.minutes >= 60 {
			minutes = h.minutes
		}
	}
	o, err := s.store().Overview(in.Context(), ops.OverviewOptions{Hours: max(minutes/60, 1)})
	if err != nil {
		return nil, err
	}
	kinds, err := s.kinds(in.Context(), ops.Filter{}, kindsWithin)
	if err != nil {
		return nil, err
	}
	v := overviewView{O: o, totals: totalsOf(l, o), Charts: charts(l, o, minutes)}
	for i, ds := range o.DataSources {
		v.Sources = append(v.Sources, sourceView{ds, fmt.Sprintf("ds%d", i), l})
	}
	for _, h := range ranges {
		address := s.cfg.BasePath + "/"
		if h.minutes != usualMinutes {
			address = with(address, "minutes", strconv.Itoa(h.minutes))
		}
		v.Ranges = append(v.Ranges, tab{fmt.Sprint("h", h.minutes), l.t(h.text), address, h.minutes == minutes})
	}
	if kinds != nil {
		v.kindList = kindViews(l, s.cfg.BasePath, kinds.Kinds, url.Values{}, kindsOnOverview)
	}
	return v, nil
}

// totals are those of all data sources of a log.
type totals struct {
	At                      time.Time
	Waiting, Leased, Parked string
	Oldest                  *time.Time
	OldestID                string
}

func totalsOf(l *language, o *ops.Overview) (t totals) {
	t.At = o.At
	var sum ops.DataSource
	for _, ds := range o.DataSources {
		sum.Waiting, sum.Leased, sum.Parked = sum.Waiting+ds.Waiting, sum.Leased+ds.Leased, sum.Parked+ds.Parked
		sum.More = append(sum.More, ds.More...)
		if ds.Oldest != nil && (t.Oldest == nil || ds.Oldest.Before(*t.Oldest)) {
			t.Oldest, t.OldestID = ds.Oldest, ds.OldestID
		}
	}
	all := sourceView{DataSource: sum, l: l}
	t.Waiting, t.Leased, t.Parked = all.Capped("waiting"), all.Capped("leased"), all.Capped("parked")
	return t
}

// A chart is the writes for one data source over time.
type chart struct {
	Name, Anchor string
	// X are the starts of the buckets in seconds, Y the figures of each series, Names
	// theirs; as JSON.
	X, Y, Names string
	Legend      []part
	Rows        []chartRow
}

type chartRow struct {
	Start  time.Time
	Values []float64
}

type part struct {
	Class, Name string
	of          func(ops.Funnel) float64
}

// series are the parts of a chart, from the bottom.
var series = []part{
	{"c-atonce", "delivered at once", func(f ops.Funnel) float64 { return f.AtOnce }},
	{"c-sync", "by sync retry", func(f ops.Funnel) float64 { return f.SyncRetry }},
	{"c-job", "by the job", func(f ops.Funnel) float64 { return f.Job }},
	{"c-pending", "left to the job", func(f ops.Funnel) float64 { return f.Pending }},
	{"c-parked", "newly parked", func(f ops.Funnel) float64 { return f.Parked }},
}

// mostBuckets is how many a chart has, of a minute at least each.
const mostBuckets = 72

// charts makes one chart for each data source with any counts.
func charts(l *language, o *ops.Overview, minutes int) []chart {
	buckets := min(minutes, mostBuckets)
	width := time.Duration(minutes) * time.Minute / time.Duration(buckets)
	first := o.At.Truncate(width).Add(-time.Duration(buckets-1) * width)
	sums := map[string]*[mostBuckets]ops.Funnel{}
	for _, m := range o.Minutes {
		i := int(m.Start.Sub(first) / width)
		if m.Start.Before(first) || i >= buckets {
			continue
		}
		if sums[m.DataSource] == nil {
			sums[m.DataSource] = new([mostBuckets]ops.Funnel)
		}
		sums[m.DataSource][i] = sums[m.DataSource][i].Plus(m.Funnel)
	}
	names := make([]string, len(series))
	for i, s := range series {
		names[i] = l.t(s.Name)
	}
	var all []chart
	for n, name := range slices.Sorted(maps.Keys(sums)) {
		ch := chart{Name: name, Anchor: fmt.Sprintf("chart%d", n), Names: toJSON(names), Legend: series}
		x := make([]int64, buckets)
		y := make([][]float64, len(series))
		for i := range buckets {
			start := first.Add(time.Duration(i) * width)
			x[i] = start.Unix()
			row := chartRow{Start: start}
			any := false
			for j, s := range series {
				f := s.of(sums[name][i]) / width.Minutes()
				y[j] = append(y[j], float64(int(f*100+0.5))/100)
				row.Values = append(row.Values, f)
				any = any || f > 0
			}
			if any {
				ch.Rows = append(ch.Rows, row)
			}
		}
		slices.Reverse(ch.Rows)
		ch.X, ch.Y = toJSON(x), toJSON(y)
		all = append(all, ch)
	}
	return all
}

func toJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
