package cli

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// This is a usable file, to be cut piece by piece.
const wholeFileToCut = `# job
x-common: &db {driver: sqlite, dsn: "file:DIR/a.db"}
targetDataSource:
  orders: {<<: *db, driver: sqlite3}
  ledger:
    driver: &d mariadb
    dsn: "root:s3cr3t-Pa55@tcp(127.0.0.1:1)/ledger"
  stock: {driver: postgresql, dsn: "postgres://u:s3cr3t-Pa55@127.0.0.1:1/stock"}
  events: {driver: nats, dsn: "nats://127.0.0.1:1"}
transactionLogDataSource: {driver: sqlite, dsn: "file:DIR/log.db"}
jobConfig:
  cron: "0/5 * * * * ?"
  leaseMillis: 30000
console:
  listen: "127.0.0.1:0"
  users: [{name: ann, passwordHash: "x", role: read}]
`

// runOn runs a command on a configuration, and reports a panic as such.
func runOn(t *testing.T, file string, args ...string) (status int, said string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%v panics: %v", args, p)
		}
	}()
	var out bytes.Buffer
	a := app{Getenv: env(nil), In: strings.NewReader(""), Out: &out, Err: &out, Now: time.Now, Open: openLog}
	status = a.run(t.Context(), append(args, "-c", file))
	return status, out.String()
}

func TestMalformedFilesAreFindingsWithTheirLine(t *testing.T) {
	t.Parallel()
	const log = "transactionLogDataSource: {driver: sqlite, dsn: \"file:DIR/log.db\"}\n"
	for name, c := range map[string]struct{ text, place string }{
		"no driver":              {"targetDataSource:\n  a: {dsn: x}\n" + log, ":2:"},
		"unknown driver":         {"targetDataSource:\n  a: {driver: oracle, dsn: x}\n" + log, ":2:"},
		"data source of text":    {"targetDataSource:\n  a: mysql\n" + log, ":2:"},
		"data source of a list":  {"targetDataSource:\n  a: [mysql, x]\n" + log, ":2:"},
		"empty data source":      {"targetDataSource:\n  a:\n" + log, ":2:"},
		"data sources in a list": {"targetDataSource:\n  - {driver: sqlite, dsn: x}\n" + log, ":2:"},
		"section of text":        {"targetDataSource: none\n" + log, ":1:"},
		"driver of a list":       {"targetDataSource:\n  a: {driver: [sqlite], dsn: x}\n" + log, ":2:"},
		"dsn of a mapping":       {"targetDataSource:\n  a: {driver: sqlite, dsn: {a: b}}\n" + log, ":2:"},
		"log of text":            {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\ntransactionLogDataSource: sqlite\n", ":3:"},
		"log without driver":     {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\ntransactionLogDataSource: {dsn: x}\n", ":3:"},
		"log of a broker":        {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\ntransactionLogDataSource: {driver: nats, dsn: x}\n", ":3:"},
		"log with a wrong DSN":   {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\ntransactionLogDataSource: {driver: mariadb, dsn: \"x:s3cr3t-Pa55\"}\n", ":3:"},
		"duplicate key":          {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n  a: {driver: sqlite, dsn: y}\n" + log, ":3:"},
		"unknown key":            {"targetDataSource:\n  a: {driver: sqlite, dsn: x, colour: red}\n" + log, ":2:"},
		"unknown section":        {"targetDataSources: {}\n" + log, ":1:"},
		"empty":                  {"", ":1:"},
		"comments alone":         {"# nothing\n", ":1:"},
		"text":                   {"hello", ":1:"},
		"list":                   {"- a\n- b\n", ":1:"},
		"number":                 {"7\n", ":1:"},
		"tabs":                   {"targetDataSource:\n\ta: {driver: sqlite, dsn: x}\n" + log, ":2:"},
		"open quote":             {"targetDataSource:\n  a: {driver: sqlite, dsn: \"x}\n" + log, ":"},
		"open brace":             {"targetDataSource:\n  a: {driver: sqlite, dsn: x\n" + log, ":"},
		"binary":                 {"\x00\x01\xff\xfe\x80", ":1:"},
		"alias of nothing":       {"targetDataSource:\n  a: *b\n" + log, ":2:"},
		"alias of itself":        {"targetDataSource: &a\n  a: *a\n" + log, ":2:"},
		"merge of text":          {"targetDataSource:\n  a: {<<: x, driver: sqlite, dsn: x}\n" + log, ":2:"},
		"aliases without end":    {"x-a: &a [1,1,1,1,1,1,1,1,1,1]\nx-b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nx-c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nx-d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\nx-e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n" + log, ":5:"},
		"jobConfig of text":      {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n" + log + "jobConfig: fast\n", ":4:"},
		"job key of a list":      {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n" + log + "jobConfig:\n  cron: [a]\n", ":5:"},
		"console of text":        {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n" + log + "console: on\n", ":4:"},
		"console users of text":  {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n" + log + "console: {users: ann}\n", ":4:"},
		"two documents":          {"targetDataSource:\n  a: {driver: sqlite, dsn: x}\n" + log + "---\na: b\n", ":5:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "f.yaml")
			write(t, file, strings.ReplaceAll(c.text, "DIR", dir))
			status, said := runOn(t, file, "doctor")
			if status != 1 || !strings.Contains(said, file+c.place) || strings.Contains(said, "s3cr3t") {
				t.Errorf("status %d, without %s:\n%s", status, c.place, said)
			}
			if status, said := runOn(t, file, "run", "--once"); status == 0 || !strings.Contains(said, file+":") {
				t.Errorf("run ends with %d:\n%s", status, said)
			}
			for _, args := range [][]string{{"migrate", "--dry-run"}, {"list"}, {"stats"}, {"check"}, {"show", "x"}, {"rehearse"}, {"kinds"}, {"list", "--verify"}, {"audit"}} {
				if status, said := runOn(t, file, args...); status == 0 {
					t.Errorf("%v ends with %d:\n%s", args, status, said)
				}
			}
		})
	}
}

// Whatever is cut out of a file, put into it or doubled: commands end with a status.
func TestNoMutilatedFileStopsDoctor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "f.yaml")
	whole := strings.ReplaceAll(wholeFileToCut, "DIR", dir)
	if _, err := parseConfig(file, []byte(strings.Replace(whole, `"x", role`, `"$2a$10$7EqJtq98hPqEX7fNZaFWoOhi5YbZ5mvS4H0YkRkE.5pJtqSk1yqjO", role`, 1)), env(nil), wholeFile); err != nil {
		t.Fatalf("the whole file is refused: %v", err)
	}
	var texts []string
	for i := 0; i < len(whole); i += 3 {
		texts = append(texts, whole[:i], whole[i:], whole[:i]+whole[min(i+5, len(whole)):])
		for _, in := range []string{"\t", "[", "{", "*x", "&x ", "<<: ", "\"", ": ", "\n- ", "!!int "} {
			if i%21 == 0 {
				texts = append(texts, whole[:i]+in+whole[i:])
			}
		}
	}
	lines := strings.SplitAfter(whole, "\n")
	for i := range lines {
		texts = append(texts, strings.Join(append(append(append([]string{}, lines[:i]...), lines[i], lines[i]), lines[i+1:]...), ""))
	}
	for _, text := range texts {
		for _, p := range []part{wholeFile, logAndTargets, logTargetsAndConsole} {
			c, err := parseConfig(file, []byte(text), env(nil), p)
			if err != nil && !strings.HasPrefix(err.Error(), file+":") || strings.Contains(fmt.Sprint(err), "s3cr3t") {
				t.Fatalf("%q is refused with %v", text, err)
			}
			if c == nil {
				continue
			}
			for _, s := range append(c.targets, c.log) {
				_, _ = diagnosed(s) // must not panic
			}
		}
	}
}

func TestFileTakesMarksAnchorsAndTheNamesOfOpen(t *testing.T) {
	t.Parallel()
	whole := strings.Replace(wholeFileToCut, `"x", role`, `"$2a$10$7EqJtq98hPqEX7fNZaFWoOhi5YbZ5mvS4H0YkRkE.5pJtqSk1yqjO", role`, 1)
	wide := []byte("\xff\xfe")
	for _, c := range []byte(whole) {
		wide = append(wide, c, 0)
	}
	for name, text := range map[string]string{"plain": whole, "mark": "\ufeff" + whole, "mark and CRLF": "\ufeff" + strings.ReplaceAll(whole, "\n", "\r\n"), "UTF-16": string(wide)} {
		c, err := parseConfig("f.yaml", []byte(text), env(nil), wholeFile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, s := range c.targets {
			got = append(got, s.name+" "+s.driver)
		}
		if all := strings.Join(got, ", "); all != "events nats, ledger mysql, orders sqlite, stock postgres" {
			t.Errorf("%s: %s", name, all)
		}
	}
}
