// Package bedprom counts outcomes of writes, for Prometheus. A [Collector] subscribes to a
// [listener.Bus], in an application or in the job:
//
//	bus := listener.NewBus(nil)                     // for bedsql.Config.Bus
//	metrics := bedprom.New(bus)
//	defer metrics.Close()
//	prometheus.MustRegister(metrics)
//
// bed-job also reports the number of entries in the transaction log. Labels contain the data
// source and words of a fixed list, never an id, an error's text or a value.
package bedprom
