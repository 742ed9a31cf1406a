package bedprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
)

const docs = "../../docs/"

// described returns the labels of each metric.
func described(t *testing.T) map[string][]string {
	t.Helper()
	c := bedprom.New(listener.NewBus(nil))
	defer c.Close()
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	logmetrics.New(nil).Describe(descs)
	close(descs)
	all := map[string][]string{}
	form := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("the description cannot be read: %v", d)
		}
		all[m[1]] = strings.Split(m[2], ",")
	}
	if len(all) < 15 {
		t.Fatalf("there are only these metrics: %v", all)
	}
	return all
}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	metric   = regexp.MustCompile(`\bbed_\w+`)
	selector = regexp.MustCompile(`(bed_\w+)\{([^}]*)\}`)
	by       = regexp.MustCompile(`\bby \(([^)]*)\)`)
	label    = regexp.MustCompile(`\w+`)
)

// fit reports the unknown parts of a query. used collects the metrics in it.
func fit(query string, metrics map[string][]string, used map[string]bool) (faults []string) {
	query = quoted.ReplaceAllString(query, `""`)
	labelsOf := func(name string) []string {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			base, ok := strings.CutSuffix(name, suffix)
			if labels, known := metrics[base]; ok && known {
				used[base] = true
				return append([]string{"le", "instance", "job"}, labels...)
			}
		}
		faults = append(faults, "there is no metric "+name)
		return nil
	}
	names := metric.FindAllString(query, -1)
	if len(names) == 0 {
		return []string{"it names no metric"}
	}
	for _, name := range names {
		labels := labelsOf(name)
		for _, m := range by.FindAllStringSubmatch(query, -1) {
			for _, l := range label.FindAllString(m[1], -1) {
				if !slices.Contains(labels, l) {
					faults = append(faults, name+" has no label "+l)
				}
			}
		}
	}
	for _, m := range selector.FindAllStringSubmatch(query, -1) {
		for part := range strings.SplitSeq(m[2], ",") {
			if l := label.FindString(part); !slices.Contains(labelsOf(m[1]), l) {
				faults = append(faults, m[1]+" has no label "+l)
			}
		}
	}
	return faults
}

// queries returns the queries of the rules and of the dashboard, by their places.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err := os.ReadFile(docs + "prometheus/rules.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil || len(rules.Groups) == 0 || len(rules.Groups[0].Rules) < 10 {
		t.Fatalf("the rules cannot be read: %v", err)
	}
	for _, r := range rules.Groups[0].Rules {
		all[r.Alert] = r.Expr
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	text, err = os.ReadFile(docs + "grafana/bed.json")
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil || len(board.Panels) < 10 {
		t.Fatalf("the dashboard cannot be read: %v", err)
	}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %q, query %d", p.Title, i)] = target.Expr
		}
	}
	for _, v := range board.Templating.List {
		if v.Name == "data_source" {
			all["the variable data_source"] = v.Query
		}
	}
	return all
}

func TestRulesAndDashboardQueryExistingMetrics(t *testing.T) {
	t.Parallel()
	metrics, used := described(t), map[string]bool{}
	for where, query := range queries(t) {
		for _, fault := range fit(query, metrics, used) {
			t.Errorf("%s: %s: %s", where, fault, query)
		}
	}
	for name := range metrics {
		if !used[name] {
			t.Errorf("neither an alert nor a panel shows %s", name)
		}
	}
	page, err := os.ReadFile(docs + "monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, labels := range metrics {
		row := "| `" + name + "` | "
		for i, l := range labels {
			if i > 0 {
				row += ", "
			}
			if l != "" {
				row += "`" + l + "`"
			}
		}
		if !strings.Contains(string(page), strings.TrimRight(row, " ")+" ") {
			t.Errorf("docs/monitoring.md has no row %s", row)
		}
	}
	for _, fault := range []string{`rate(bed_nonsense_total[5m])`, `sum by (colour) (bed_log_up)`, `bed_log_up{colour="red"}`, `1 > 0`} {
		if len(fit(fault, metrics, used)) == 0 {
			t.Errorf("%s is found right", fault)
		}
	}
}

// promtool is Debian's prometheus; scripts/servers.sh installs it.
func TestPromtoolAcceptsTheRulesAndTheyFire(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs promtool")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = filepath.Join(docs, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// Every process on a log reports the whole log. A query gives the same result for two processes as
// for one, and the sum for two logs.
func TestNoQueryCountsALogOncePerInstance(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs promtool")
	}
	values := map[string]string{
		"bed_log_up": "0", "bed_jobs_alive": "0", "bed_data_source_up": "0", "bed_data_source_paused": "1", "bed_log_entries": "100", "bed_log_oldest_seconds": "1000",
	}
	states := regexp.MustCompile(`^bed_log_(entries|oldest_seconds)$`)
	var file strings.Builder
	file.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for name, value := range values {
		for _, labels := range []string{`log="one",instance="a"`, `log="one",instance="b"`, `log="two",instance="c"`} {
			if strings.HasPrefix(name, "bed_data") || states.MatchString(name) {
				labels += `,data_source="orders"`
			}
			if !states.MatchString(name) {
				fmt.Fprintf(&file, "      - {series: '%s{%s}', values: '%sx5'}\n", name, labels, value)
				continue
			}
			for _, state := range []string{"waiting", "parked"} {
				fmt.Fprintf(&file, "      - {series: '%s{%s,state=%q}', values: '%sx5'}\n", name, labels, state, value)
			}
		}
	}
	file.WriteString("    promql_expr_test:\n")
	n := 0
	for where, query := range queries(t) {
		names := metric.FindAllString(quoted.ReplaceAllString(query, ""), -1)
		if strings.Contains(where, "variable") || slices.ContainsFunc(names, func(name string) bool { return values[name] == "" }) {
			continue
		}
		n++
		query = strings.ReplaceAll(query, "$data_source", ".*")
		once := regexp.MustCompile(`(bed_\w+)(\{)?`).ReplaceAllStringFunc(query, func(m string) string {
			if base, ok := strings.CutSuffix(m, "{"); ok {
				return base + `{instance!="b",`
			}
			return m + `{instance!="b"}`
		})
		differs := fmt.Sprintf("((%s) != (%s)) or ((%[1]s) unless (%[2]s)) or ((%[2]s) unless (%[1]s))", query, once)
		fmt.Fprintf(&file, "      - {expr: %q, eval_time: 3m, exp_samples: []}\n", differs)
		if !strings.HasPrefix(query, "absent") {
			fmt.Fprintf(&file, "      - {expr: %q, eval_time: 3m, exp_samples: [{labels: '{}', value: 1}]}\n", "count(count("+query+"))")
		}
	}
	if n < 8 {
		t.Fatalf("only %d queries ask for the state of the log", n)
	}
	path := filepath.Join(t.TempDir(), "two.yml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
