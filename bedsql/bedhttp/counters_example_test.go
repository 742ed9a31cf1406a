package bedhttp_test

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bedsql/bed/bedsql/bedhttp"
)

// Counters as metrics of Prometheus.
func ExampleCounters() {
	counters := new(bedhttp.Counters) // and in bedhttp.Config
	registry := prometheus.NewRegistry()
	for answer, n := range map[string]*atomic.Uint64{"replayed": &counters.Replayed, "outstanding": &counters.Outstanding, "undone": &counters.Undone, "refused": &counters.Refused, "failed": &counters.Failed} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "bed_http_answers_total", Help: "Answers to requests with a key.", ConstLabels: prometheus.Labels{"answer": answer},
		}, func() float64 { return float64(n.Load()) }))
	}

	counters.Replayed.Add(2)
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range families[0].GetMetric() {
		fmt.Println(families[0].GetName(), m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
	}
	// Output:
	// bed_http_answers_total failed 0
	// bed_http_answers_total outstanding 0
	// bed_http_answers_total refused 0
	// bed_http_answers_total replayed 2
	// bed_http_answers_total undone 0
}
