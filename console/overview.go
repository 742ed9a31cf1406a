package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

// overviewView is the overview as the page shows it.
type overviewView struct {
	Off             []string
	HalfCompensated int
	Total           ops.Funnel
	totals
	Sources []sourceView
	Jobs    []ops.Job
	Ranges  []hourRange
	Charts  []chart
	// Kinds are the most frequent errors, OtherKinds describes the rest.
	Kinds      []kindView
	OtherKinds string
}

type hourRange struct {
	Minutes int
	Text    string
	URL     string
	Current bool
}

// sourceView is a data source with its links.
type sourceView struct {
	ops.DataSource
	Anchor string
	l      *language
	base   string
}

// ListURL leads to its entries in a state.
func (s sourceView) ListURL(state string) string {
	q := url.Values{"dataSource": {s.Name}}
	if state != "" {
		q.Set("state", state)
	}
	return s.base + "/entries?" + q.Encode()
}

// ControlURL leads to the page for pausing, resuming or limiting the source.
func (s sourceView) ControlURL(action string) string {
	return controlURL(s.base, s.Name, ops.Action(action))
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

// kindsOnOverview is how many kinds of errors the overview shows.
const kindsOnOverview = 5

func (s *site) overviewPage(r *http.Request, _ person) (any, error) {
	minutes := usualMinutes
	for _, h := range ranges {
		if q := r.URL.Query(); q.Get("minutes") == strconv.Itoa(h.minutes) || q.Get("hours") == strconv.Itoa(h.minutes/60) && h.minutes >= 60 {
			minutes = h.minutes
		}
	}
	o, err := s.store().Overview(r.Context(), ops.OverviewOptions{Hours: max(minutes/60, 1)})
	if err != nil {
		return nil, err
	}
	kinds, err := s.kinds(r.Context(), ops.Filter{}, kindsWithin)
	if err != nil {
		return nil, err
	}
	l := languageOf(r)
	v := overviewView{Off: o.Off, HalfCompensated: o.HalfCompensated, Total: o.Funnel, Jobs: o.Jobs}
	v.totals = totalsOf(l, o)
	for i, ds := range o.DataSources {
		v.Sources = append(v.Sources, sourceView{ds, fmt.Sprintf("ds%d", i), l, s.cfg.BasePath})
	}
	for _, h := range ranges {
		address := s.cfg.BasePath + "/"
		if h.minutes != usualMinutes {
			address = with(address, "minutes", strconv.Itoa(h.minutes))
		}
		v.Ranges = append(v.Ranges, hourRange{h.minutes, l.t(h.text), address, h.minutes == minutes})
	}
	v.Charts = charts(l, o, minutes)
	if kinds != nil {
		v.Kinds, v.OtherKinds = kindViews(l, s.cfg.BasePath, kinds.Kinds, url.Values{}, kindsOnOverview)
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
	Legend      []legend
	Rows        []chartRow
}

type legend struct{ Class, Name string }

type chartRow struct {
	Start  time.Time
	Values []float64
}

// series are the parts of a chart, from the bottom.
var series = []struct {
	class, name string
	of          func(ops.Funnel) float64
}{
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
	var legends []legend
	for i, s := range series {
		names[i] = l.t(s.name)
		legends = append(legends, legend{s.class, names[i]})
	}
	var all []chart
	for n, name := range slices.Sorted(maps.Keys(sums)) {
		ch := chart{Name: name, Anchor: fmt.Sprintf("chart%d", n), Names: toJSON(names), Legend: legends}
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
