package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// results are the measurements of a run; an omitted one is nil.
type results struct {
	opts    *Options
	writes  *writes
	drain   *drain
	claims  *claims
	selects *selects
}

// print writes the tables, in Markdown so that a run can be kept as it is.
func (r *results) print(out io.Writer) {
	if r.writes != nil {
		r.printWrites(out)
	}
	if r.drain != nil {
		r.printDrain(out)
	}
	if r.claims != nil {
		r.printClaims(out)
	}
	if r.selects != nil {
		r.printSelects(out)
	}
	figures := r.figures()
	rows := [][]string{{"figure", "median (least–most)", "to reach", ""}}
	for _, f := range figures {
		verdict := "yes"
		if !f.reached() {
			verdict = "NO"
		}
		rows = append(rows, []string{f.name, f.values.String(), f.want(), verdict})
	}
	table(out, "Figures", rows)
	fmt.Fprintf(out, "\n%s\n", line(figures))
}

func (r *results) printWrites(out io.Writer) {
	scenes := slices.DeleteFunc(r.opts.scenes(), func(sc scene) bool { return r.writes.turns[sc.name] == nil })
	head := []string{"contender"}
	for _, sc := range scenes {
		head = append(head, sc.label(r.opts))
	}
	for _, sc := range scenes {
		if sc.callers == 1 {
			head = append(head, "p50 × bare, "+sc.label(r.opts))
		}
	}
	titles := map[string]string{onMariaDB: "UPDATE in MariaDB", onPostgres: "UPDATE in PostgreSQL", onTwo: "two UPDATEs in two MariaDB databases", inTx: "a local transaction of two UPDATEs in MariaDB",
		txThen: "an UPDATE in a local transaction, then one in a second MariaDB database",
		byHTTP: "an HTTP request of two UPDATEs in MariaDB",
		byCall: "a request to a service behind bedhttp"}
	rows := [][]string{head}
	for _, c := range contenders() {
		row, any := []string{c.name}, false
		if c.id == c.base {
			row[0] = "**" + titles[c.base] + "**: " + c.name
		}
		cell := func(sc scene, of func(turn) float64, absolute string) {
			s, ok := r.writes.ratio(sc.name, c.id, c.base, of)
			switch {
			case !ok:
				row = append(row, "")
			case c.id == c.base:
				row, any = append(row, absolute), true
			default:
				row, any = append(row, s.String()), true
			}
		}
		for _, sc := range scenes {
			cell(sc, throughput, fmt.Sprintf("%.0f/s", r.writes.median(sc.name, c.id, throughput)))
		}
		for _, sc := range scenes {
			if sc.callers == 1 {
				cell(sc, latency, fmt.Sprintf("%.2f ms", r.writes.median(sc.name, c.id, latency)/1e6))
			}
		}
		if any {
			rows = append(rows, row)
		}
	}
	table(out, "Writes: throughput as a ratio to the bare driver's", rows)
	r.printProcessors(out, scenes, titles)
}

// printProcessors prints the client's and the servers' time for a write. If log and target share a
// server, its time covers both.
func (r *results) printProcessors(out io.Writer, scenes []scene, titles map[string]string) {
	for _, sc := range scenes {
		if sc.callers < 64 || sc.far {
			continue
		}
		rows := [][]string{{"contender", "client", "MariaDB", "PostgreSQL"}}
		for _, c := range contenders() {
			var writes int
			var sum spent
			for _, t := range r.writes.turns[sc.name][c.id] {
				writes += t.writes
				sum = sum.plus(t.cpu)
			}
			if writes == 0 || sum.here == 0 {
				continue
			}
			name := c.name
			if c.id == c.base {
				name = "**" + titles[c.base] + "**: " + name
			}
			each := func(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d.Microseconds())/float64(writes)) }
			rows = append(rows, []string{name, each(sum.here), each(sum.mysql), each(sum.postgres)})
		}
		table(out, "What a write costs your servers: processor time in µs, "+sc.label(r.opts), rows)
	}
}

func (sc scene) label(o *Options) string {
	text := fmt.Sprintf("%d callers", sc.callers)
	if sc.callers == 1 {
		text = "1 caller"
	}
	if sc.far {
		text += ", " + o.RoundTrip.String()
	}
	return text
}

func (w *writes) median(scene, id string, of func(turn) float64) float64 {
	var s series
	for _, t := range w.turns[scene][id] {
		s = append(s, of(t))
	}
	return s.median()
}

func (r *results) printDrain(out io.Writer) {
	rows := [][]string{{"contender", "MariaDB", "PostgreSQL"}}
	names := []struct{ id, name string }{
		{"bare", fmt.Sprintf("bare driver, %d callers", drainConns)},
		{"job", fmt.Sprintf("job, at-least-once units, Concurrency %d, DeliveryBatch %d", drainJobConns, drainBatch)},
		{"job-alone", fmt.Sprintf("the same, Concurrency %d, each unit alone", drainConns)},
		{"job-defaults", "the same with the defaults"},
		{"job-eo", fmt.Sprintf("job, exactly-once units, Concurrency %d", drainConns)},
	}
	for _, q := range r.opts.Queues {
		names = append(names, struct{ id, name string }{q.Name, q.Name})
	}
	for _, n := range names {
		row, any := []string{n.name}, false
		for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
			rates := r.drain.rates[driver]
			switch {
			case rates[n.id] == nil:
				row = append(row, "")
			case n.id == "bare":
				row, any = append(row, fmt.Sprintf("%.0f/s", rates[n.id].median())), true
			default:
				row, any = append(row, fmt.Sprintf("%v, %.0f/s", rates[n.id].over(rates["bare"]), rates[n.id].median())), true
			}
		}
		if any {
			rows = append(rows, row)
		}
	}
	table(out, fmt.Sprintf("Drain: %d waiting units or jobs of one UPDATE each", r.opts.DrainUnits), rows)
	rows = [][]string{{"contender", "on MariaDB: this process", "the server", "on PostgreSQL: this process", "the server"}}
	for _, n := range names {
		row, any := []string{n.name}, false
		for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
			units := time.Duration(len(r.drain.rates[driver][n.id]) * r.opts.DrainUnits)
			cpu := r.drain.cpu[driver][n.id]
			if units == 0 || cpu.here == 0 {
				row = append(row, "", "")
				continue
			}
			server := cpu.mysql + cpu.postgres // the other one has nothing to do
			row, any = append(row, fmt.Sprint((cpu.here/units).Microseconds()), fmt.Sprint((server/units).Microseconds())), true
		}
		if any {
			rows = append(rows, row)
		}
	}
	table(out, "Processor time of a unit in µs", rows)
}

func (r *results) printClaims(out io.Writer) {
	rows := [][]string{{"log", fmt.Sprintf("%d parked", r.opts.ParkedFew), fmt.Sprintf("%d parked", r.opts.ParkedMany), "ratio", "bytes allocated, ratio"}}
	for _, one := range []struct{ name, driver string }{{"MariaDB", testdb.DriverMySQL}, {"PostgreSQL", testdb.DriverPostgres}} {
		few, many := r.claims.few[one.driver], r.claims.many[one.driver]
		rows = append(rows, []string{one.name, fmt.Sprintf("%.2f ms", few.median()), fmt.Sprintf("%.2f ms", many.median()),
			many.over(few).String(), r.claims.manyBytes[one.driver].over(r.claims.fewBytes[one.driver]).String()})
	}
	table(out, fmt.Sprintf("A claim of %d units", claimLimit), rows)
}

func (r *results) printSelects(out io.Writer) {
	rows := [][]string{{"SELECT on a driver in memory", "ns", "more than bare", "allocations", "more than bare"}}
	for _, name := range r.selects.order {
		ns, allocations := r.selects.nanoseconds[name], r.selects.allocations[name]
		row := []string{name, fmt.Sprintf("%.0f", ns.median()), "", fmt.Sprintf("%.1f", allocations.median()), ""}
		if name != "bare" {
			row[2] = r.selects.moreNanoseconds[name].whole()
			row[4] = fmt.Sprintf("%+.1f", r.selects.moreAllocations[name].median())
		}
		rows = append(rows, row)
	}
	table(out, "What passes through", rows)
}

// table writes rows; the first row is the head.
func table(out io.Writer, title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	fmt.Fprintf(out, "\n%s\n\n", title)
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(out, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(out, "|")
		if n == 0 {
			for _, w := range widths {
				fmt.Fprintf(out, "|%s", strings.Repeat("-", w+2))
			}
			fmt.Fprintln(out, "|")
		}
	}
}
