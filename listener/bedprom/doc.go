// Package bedprom counts what happens to writes, for Prometheus. A [Collector] hangs
// on a [listener.Bus], in an application as in the job:
//
//	bus := listener.NewBus(nil)                     // for bedsql.Config.Bus
//	metrics := bedprom.New(bus)
//	defer metrics.Close()
//	prometheus.MustRegister(metrics)
//
// Given the transaction log by [WithLog] it also tells how many entries wait there, as
// bed-job does. Labels name the data source and words of a fixed list, never an id,
// an error's text or a value.
package bedprom
