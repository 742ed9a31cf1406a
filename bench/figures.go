package bench

import (
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/test/testdb"
)

// figure is a figure with a goal.
type figure struct {
	// name is for machines and does not change.
	name string
	// goal is the bound for it, from below or above.
	goal   float64
	atMost bool
	values series
}

// ofWrites are the figures of scenes; id and base are contenders.
type ofWrites struct {
	name   string
	scene  func(*Options) string
	id     string
	base   string
	of     func(turn) float64
	goal   float64
	atMost bool
}

func near(callers int) func(*Options) string {
	return func(*Options) string { return fmt.Sprint(callers) }
}

func farOff(callers int) func(*Options) string {
	return func(o *Options) string { return fmt.Sprintf("%d %v", callers, o.RoundTrip) }
}

var writeFigures = []ofWrites{
	// The names are for a round trip of a millisecond, and stay with another.
	{"alo_mariadb_64_behind", near(64), "alo-mariadb-log-mariadb", onMariaDB, throughput, 0.60, false},
	{"alo_mariadb_64_before", near(64), "alo-mariadb-log-mariadb-before", onMariaDB, throughput, 0.42, false},
	{"alo_mariadb_64_1ms_behind", farOff(64), "alo-mariadb-log-mariadb", onMariaDB, throughput, 0.50, false},
	{"alo_sqlite_64_behind", near(64), "alo-mariadb-log-sqlite", onMariaDB, throughput, 0.72, false},
	{"alo_mariadb_1_1ms_behind_p50", farOff(1), "alo-mariadb-log-mariadb", onMariaDB, latency, 2.1, true},
	{"eo_mariadb_64", near(64), "eo-mariadb-log-mariadb", onMariaDB, throughput, 0.48, false},
	{"eo_postgres_64", near(64), "eo-postgres-log-postgres", onPostgres, throughput, 0.48, false},
	{"eo_mariadb_1_1ms_p50", farOff(1), "eo-mariadb-log-mariadb", onMariaDB, latency, 2.2, true},
	{"eo_postgres_1_1ms_p50", farOff(1), "eo-postgres-log-postgres", onPostgres, latency, 2.2, true},
	{"staged_eo_1_1ms_p50", farOff(1), "staged-eo", onTwo, latency, 1.15, true},
	{"staged_eo_64", near(64), "staged-eo", onTwo, throughput, 0.45, false},
	{"staged_eo_64_over_xa", near(64), "staged-eo", "xa-two", throughput, 1.5, false},
	{"with_eo_1", near(1), "with-eo", txThen, throughput, 0.82, false},
	{"with_eo_8", near(8), "with-eo", txThen, throughput, 0.85, false},
	{"with_eo_64", near(64), "with-eo", txThen, throughput, 0.50, false},
	{"with_eo_1_1ms_p50", farOff(1), "with-eo", txThen, latency, 1.25, true},
	// The throughput with an order key, relative to the throughput without.
	{"order_eo_64", near(64), "order-eo", "eo-mariadb-log-mariadb", throughput, 0.85, false},
	{"http_key_1", near(1), "http-key", byHTTP, throughput, 0.80, false},
	{"http_key_64", near(64), "http-key", byHTTP, throughput, 0.60, false},
	{"call_1", near(1), "call", byCall, throughput, 0.40, false},
	{"call_64", near(64), "call", byCall, throughput, 0.60, false},
	{"call_unlogged_1", near(1), "call-unlogged", byCall, throughput, 0.90, false},
	{"call_unlogged_64", near(64), "call-unlogged", byCall, throughput, 0.90, false},
	// The throughput with the console's account of each minute, relative to the throughput
	// without.
	{"counted_mariadb_64", near(64), "alo-mariadb-log-mariadb", "uncounted-mariadb", throughput, 0.98, false},
	{"counted_postgres_64", near(64), "alo-postgres-log-postgres", "uncounted-postgres", throughput, 0.98, false},
	// Of two figures with one name the worse one counts.
	{"onfailure_alo_1_1ms", farOff(1), "onfailure-alo-mariadb", onMariaDB, throughput, 0.95, false},
	{"onfailure_alo_1_1ms", farOff(1), "onfailure-alo-postgres", onPostgres, throughput, 0.95, false},
	{"onfailure_alo_64", near(64), "onfailure-alo-mariadb", onMariaDB, throughput, 0.95, false},
	{"onfailure_alo_64", near(64), "onfailure-alo-postgres", onPostgres, throughput, 0.95, false},
	{"onfailure_eo_1_1ms_p50", farOff(1), "onfailure-eo-mariadb", onMariaDB, latency, 1.08, true},
	{"onfailure_eo_1_1ms_p50", farOff(1), "onfailure-eo-postgres", onPostgres, latency, 1.08, true},
	{"onfailure_eo_mariadb_64", near(64), "onfailure-eo-mariadb", onMariaDB, throughput, 0.52, false},
	{"onfailure_eo_postgres_64", near(64), "onfailure-eo-postgres", onPostgres, throughput, 0.58, false},
	{"alongside_1_1ms_p50", farOff(1), "alongside-alo-mariadb-log-mariadb", onMariaDB, latency, 1.25, true},
	{"alongside_1_1ms", farOff(1), "alongside-alo-mariadb-log-mariadb", onMariaDB, throughput, 0.78, false},
	{"alongside_16_1ms", farOff(16), "alongside-alo-mariadb-log-mariadb", onMariaDB, throughput, 0.70, false},
	{"alongside_64_1ms", farOff(64), "alongside-alo-mariadb-log-mariadb", onMariaDB, throughput, 0.58, false},
	{"alongside_tx_1_1ms_p50", farOff(1), "tx-alongside", inTx, latency, 1.1, true},
	{"onfailure_tx_1_1ms_p50", farOff(1), "tx-onfailure", inTx, latency, 1.05, true},
}

// figuresUse reports whether any figure uses a scene's contender.
func figuresUse(o *Options, scene, id string) bool {
	for _, f := range writeFigures {
		if f.scene(o) == scene && (f.id == id || f.base == id) {
			return true
		}
	}
	return false
}

// figures returns the measured figures.
func (r *results) figures() []figure {
	var all []figure
	add := func(name string, values series, goal float64, atMost bool) {
		if len(values) == 0 {
			return
		}
		f := figure{name, goal, atMost, values}
		if last := len(all) - 1; last >= 0 && all[last].name == name {
			all[last] = all[last].worse(f)
			return
		}
		all = append(all, f)
	}
	if r.writes != nil {
		for _, f := range writeFigures {
			if s, ok := r.writes.ratio(f.scene(r.opts), f.id, f.base, f.of); ok {
				add(f.name, s, f.goal, f.atMost)
			}
		}
	}
	if r.drain != nil {
		for _, one := range []struct{ name, driver string }{{"mariadb", testdb.DriverMySQL}, {"postgres", testdb.DriverPostgres}} {
			rates := r.drain.rates[one.driver]
			add("drain_"+one.name, rates["job"].over(rates["bare"]), 0.60, false)
			for _, q := range r.opts.Queues {
				add("drain_"+one.name+"_over_"+q.Name, rates["job"].over(rates[q.Name]), 1, false)
			}
		}
	}
	if r.claims != nil {
		for _, one := range []struct{ name, driver string }{{"mariadb", testdb.DriverMySQL}, {"postgres", testdb.DriverPostgres}} {
			add("claim_parked_"+one.name, r.claims.many[one.driver].over(r.claims.few[one.driver]), 1.3, true)
		}
	}
	if r.selects != nil {
		add("select_more_ns", r.selects.moreNanoseconds["bed"], 50, true)
		add("select_more_allocations", r.selects.moreAllocations["bed"], 0.005, true)
	}
	return all
}

// worse returns the figure that is farther from its goal.
func (f figure) worse(other figure) figure {
	if (other.values.median() > f.values.median()) == f.atMost {
		return other
	}
	return f
}

func (f figure) reached() bool {
	if f.atMost {
		return f.values.median() <= f.goal
	}
	return f.values.median() >= f.goal
}

func (f figure) want() string {
	if f.atMost {
		return fmt.Sprintf("at most %g", f.goal)
	}
	return fmt.Sprintf("at least %g", f.goal)
}

// line is for machines: one name=value for each figure.
func line(all []figure) string {
	words := make([]string, len(all))
	for i, f := range all {
		words[i] = fmt.Sprintf("%s=%.2f", f.name, f.values.median())
	}
	return strings.Join(words, " ")
}
