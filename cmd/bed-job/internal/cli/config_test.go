package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
)

// password stands in every configuration of these tests that can hold one.
const password = "s3cr3t-Pa55"

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func mustParse(t *testing.T, src string, vars map[string]string, p part) *config {
	t.Helper()
	c, err := parseConfig("f.yaml", []byte(src), env(vars), p)
	if err != nil {
		t.Fatalf("the configuration was refused:\n%v", err)
	}
	return c
}

const wholeExample = `
targetDataSource:
  orders_0: {driver: mysql, dsn: "${ORDERS_0_DSN}"}
  ledger:   {driver: postgres, dsn: "postgres://u:s3cr3t-Pa55@127.0.0.1/ledger"}
transactionLogDataSource: {driver: mysql, dsn: "${BED_LOG_DSN}"}
jobConfig: {name: bestEffortsDeliveryJob, cron: "0/5 * * * * ?", transactionLogFetchDataCount: 100,
            maxDeliveryTryTimes: 3, maxDeliveryTryDelayMillis: 60000}
`

func TestAConfigurationWithShardingJDBCsNamesIsRead(t *testing.T) {
	c := mustParse(t, wholeExample, map[string]string{
		"ORDERS_0_DSN": "root:s3cr3t-Pa55@tcp(127.0.0.1:3306)/orders_0",
		"BED_LOG_DSN":  "root@tcp(127.0.0.1:3306)/bed",
	}, wholeFile)
	if got := c.log; got.driver != "mysql" || got.dsn != "root@tcp(127.0.0.1:3306)/bed" {
		t.Errorf("the log is %q %q", got.driver, got.dsn)
	}
	if len(c.targets) != 2 || c.targets[0].name != "orders_0" || c.targets[0].dsn != "root:s3cr3t-Pa55@tcp(127.0.0.1:3306)/orders_0" ||
		c.targets[1].name != "ledger" || c.targets[1].driver != "postgres" {
		t.Errorf("the targets are %+v", c.targets)
	}
	want := jobConfig{
		Name: "bestEffortsDeliveryJob", Cron: "0/5 * * * * ?", TransactionLogFetchDataCount: 100,
		MaxDeliveryTryTimes: 3, MaxDeliveryTryDelay: time.Minute,
	}
	if c.job.Name != want.Name || c.job.Cron != want.Cron || c.job.TransactionLogFetchDataCount != 100 ||
		c.job.MaxDeliveryTryTimes != 3 || c.job.MaxDeliveryTryDelay != time.Minute {
		t.Errorf("the job is %+v, want %+v", c.job, want)
	}
}

const twoSQLite = `
targetDataSource:
  a: {driver: sqlite, dsn: "file:/tmp/a.db"}
transactionLogDataSource: {driver: sqlite, dsn: "file:/tmp/log.db"}
`

func TestAnAbsentSectionJobConfigMeansTheDefaults(t *testing.T) {
	c := mustParse(t, twoSQLite, nil, wholeFile)
	if d := c.job.WithDefaults(); d.MaxDeliveryTryDelay != time.Minute || d.Cron != asyncjob.DefaultCron {
		t.Errorf("the job is %+v", d)
	}
}

func TestADelayOfZeroMeansNone(t *testing.T) {
	c := mustParse(t, twoSQLite+"jobConfig: {maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, retryJitter: 0}\n", nil, wholeFile)
	if c.job.MaxDeliveryTryDelay != asyncjob.NoDelay || c.job.RetryDelay != asyncjob.NoDelay || c.job.RetryJitter != asyncjob.NoJitter {
		t.Errorf("the job is %+v", c.job)
	}
}

func TestEveryKeyOfTheJobIsRead(t *testing.T) {
	c := mustParse(t, twoSQLite+`jobConfig:
  retryDelayMillis: 1
  retryDelayMaxMillis: 2
  retryMultiplier: 1.5
  retryJitter: 0.25
  deliveryTimeoutMillis: 3
  probeTimeoutMillis: 4
  leaseMillis: 5000
  concurrency: ${N}
  deliveryBatch: 10
  unknownDataSourceDelayMillis: 6
  shutdownTimeoutMillis: 7
  receiptRetentionMillis: 604800000
  keyRetentionMillis: 9
  purgeIntervalMillis: 11
`, map[string]string{"N": "8"}, wholeFile)
	got := c.job
	if got.RetryDelay != time.Millisecond || got.RetryDelayMax != 2*time.Millisecond || got.RetryMultiplier != 1.5 ||
		got.RetryJitter != 0.25 || got.DeliveryTimeout != 3*time.Millisecond || got.ProbeTimeout != 4*time.Millisecond ||
		got.Lease != 5*time.Second || got.Concurrency != 8 || got.DeliveryBatch != 10 || got.UnknownDataSourceDelay != 6*time.Millisecond ||
		got.ShutdownTimeout != 7*time.Millisecond || got.ReceiptRetention != 7*24*time.Hour ||
		got.KeyRetention != 9*time.Millisecond || got.PurgeInterval != 11*time.Millisecond {
		t.Errorf("the job is %+v", got)
	}
}

func TestAVariablesValueIsNeverReadAsYAMLAndNeverExpandedAgain(t *testing.T) {
	evil := "file:/tmp/x.db}\nextra: {$$ ${HOME} \"'"
	c := mustParse(t, `transactionLogDataSource: {driver: sqlite, dsn: "${D}$$${D}"}`, map[string]string{"D": evil}, onlyLog)
	if want := evil + "$" + evil; c.log.dsn != want {
		t.Errorf("the dsn is %q, want %q", c.log.dsn, want)
	}
}

func TestInspectionNeedsOnlyTheLogsSection(t *testing.T) {
	c := mustParse(t, wholeExample, map[string]string{"BED_LOG_DSN": "root@tcp(127.0.0.1:3306)/bed"}, onlyLog)
	if c.log.dsn == "" || c.targets != nil {
		t.Errorf("read %+v", c)
	}
}

func TestAnchorsAndBlocksAreRead(t *testing.T) {
	c := mustParse(t, "targetDataSource:\n  a: &a\n    driver: sqlite\n    dsn: |\n      file:/tmp/a.db\n  b: *a\ntransactionLogDataSource:\n  driver: sqlite\n  dsn: >-\n    file:/tmp/log.db\n", nil, wholeFile)
	if len(c.targets) != 2 || c.targets[1].dsn != "file:/tmp/a.db" || c.log.dsn != "file:/tmp/log.db" {
		t.Errorf("read %+v", c)
	}
}

// badConfigs are refused with these lines, in this order.
var badConfigs = []struct {
	name, src string
	want      []string
}{
	{"empty", "", []string{"f.yaml:1:1: the file is empty"}},
	{"only a comment", "# nothing\n", []string{"f.yaml:1:1: the file is empty"}},
	{"not a mapping", "- a\n- b\n", []string{"f.yaml:1:1: the configuration must be a mapping"}},
	{"no section", "jobConfig: {}\n", []string{
		"f.yaml:1:1: the section targetDataSource is missing",
		"f.yaml:1:1: the section transactionLogDataSource is missing"}},
	{"unknown section", twoSQLite + "jobConfg: {}\n", []string{`f.yaml:5:1: unknown key "jobConfg" in the configuration; it knows jobConfig, targetDataSource, transactionLogDataSource`}},
	{"unknown key", twoSQLite + "jobConfig:\n  name: x\n  crn: x\n", []string{`f.yaml:7:3: unknown key "crn" in jobConfig; it knows concurrency, cron,`}},
	{"a DSN as a key", "targetDataSource:\n  a: {driver: mysql, dsn: x, \"u:s3cr3t-Pa55@tcp(h)/d\": 1}\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{
		"f.yaml:2:30: unknown key (not shown, it may hold a password) in data source \"a\"; it knows driver, dsn"}},
	{"duplicate key", twoSQLite + "jobConfig:\n  name: a\n  name: b\n", []string{`f.yaml:7:3: duplicate key "name", first given in line 6`}},
	{"duplicate section", twoSQLite + "targetDataSource: {}\n", []string{`f.yaml:5:1: duplicate key "targetDataSource", first given in line 2`}},
	{"duplicate data source", "targetDataSource:\n  a: {driver: sqlite, dsn: x}\n  a: {driver: sqlite, dsn: y}\ntransactionLogDataSource: {driver: sqlite, dsn: z}\n",
		[]string{`f.yaml:3:3: duplicate key "a", first given in line 2`}},
	{"wrong types", twoSQLite + "jobConfig:\n  name: 5\n  cron: [a]\n  concurrency: many\n  maxDeliveryTryTimes: 1.5\n  retryJitter: high\n", []string{
		`f.yaml:6:9: "name" must be text`, `f.yaml:7:9: "cron" must be text`, `f.yaml:8:16: "concurrency" must be a whole number`,
		`f.yaml:9:24: "maxDeliveryTryTimes" must be a whole number`, `f.yaml:10:16: "retryJitter" must be a number`}},
	{"section of the wrong type", "targetDataSource: x\ntransactionLogDataSource: [1]\njobConfig: 7\n", []string{
		"f.yaml:1:1: targetDataSource must be a mapping", `f.yaml:2:1: data source "transactionLogDataSource" must be a mapping`, "f.yaml:3:1: jobConfig must be a mapping"}},
	{"data source as text", "targetDataSource:\n  a: root:s3cr3t-Pa55@tcp(h)/d\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{
		`f.yaml:2:3: data source "a" must be a mapping`}},
	{"no data source", "targetDataSource: {}\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{"f.yaml:1:1: targetDataSource names no data source"}},
	{"negative and zero", twoSQLite + "jobConfig:\n  concurrency: -1\n  maxDeliveryTryTimes: 0\n  maxDeliveryTryDelayMillis: -5\n  retryJitter: -0.5\n  retryMultiplier: 0.5\n", []string{
		`f.yaml:6:16: "concurrency" must not be negative`, `f.yaml:7:24: "maxDeliveryTryTimes" must be at least 1`,
		`f.yaml:8:30: "maxDeliveryTryDelayMillis" must not be negative`, `f.yaml:9:16: "retryJitter" must be at least 0`, `f.yaml:10:20: "retryMultiplier" must be at least 1`}},
	{"retentions of zero", twoSQLite + "jobConfig:\n  receiptRetentionMillis: 0\n  keyRetentionMillis: -1\n  purgeIntervalMillis: 0\n", []string{
		`f.yaml:6:27: "receiptRetentionMillis" must be at least 1`, `f.yaml:7:23: "keyRetentionMillis" must not be negative`, `f.yaml:8:24: "purgeIntervalMillis" must be at least 1`}},
	{"too large", twoSQLite + "jobConfig:\n  leaseMillis: 9223372036854775807\n  concurrency: 99999999999999999999999\n  retryJitter: 1\n", []string{
		`f.yaml:6:16: "leaseMillis" must be at most 9223372036854`, `f.yaml:7:16: "concurrency" must be at most 2147483647`, `f.yaml:8:16: "retryJitter" must be less than 1`}},
	{"bad cron", twoSQLite + "jobConfig:\n  cron: \"* * *\"\n", []string{`f.yaml:6:9: Config.Cron is "* * *", but must be six fields`}},
	{"cron of a zone alone", twoSQLite + "jobConfig:\n  cron: \"TZ=UTC\"\n", []string{`f.yaml:6:9: Config.Cron is "TZ=UTC"`}},
	{"empty cron", twoSQLite + "jobConfig:\n  cron: \"\"\n", []string{`f.yaml:6:9: cron is empty`}},
	{"keys that do not fit each other", twoSQLite + "jobConfig:\n  retryDelayMillis: 20\n  retryDelayMaxMillis: 10\n", []string{`f.yaml:5:1: Config.RetryDelayMax is 10ms, less than RetryDelay, 20ms`}},
	{"unknown driver, empty dsn, nothing", "targetDataSource:\n  a: {driver: oracle, dsn: x}\n  b: {driver: mysql, dsn: \" \"}\n  c: {}\n  d:\ntransactionLogDataSource: {driver: mysql}\n", []string{
		`f.yaml:2:15: data source "a": unknown driver, it must be mysql, postgres, sqlite`, `f.yaml:3:27: data source "b": the dsn is empty`,
		`f.yaml:4:3: data source "c" has no driver`, `f.yaml:4:3: data source "c" has no dsn`, `f.yaml:5:3: data source "d" must be a mapping`,
		`f.yaml:6:1: data source "transactionLogDataSource" has no dsn`}},
	{"driver and dsn swapped", "targetDataSource:\n  a: {driver: \"root:s3cr3t-Pa55@tcp(h)/d\", dsn: mysql}\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{
		`f.yaml:2:15: data source "a": unknown driver`}},
	{"a DSN that its driver cannot read", "targetDataSource:\n  a: {driver: mysql, dsn: \"root:s3cr3t-Pa55@tcp(h\"}\n  b: {driver: postgres, dsn: \"postgres://u:s3cr3t-Pa55@h:port/d\"}\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{
		`f.yaml:2:27: data source "a": `, `f.yaml:3:30: data source "b": `}},
	{"unset variable", "targetDataSource:\n  a:\n    driver: mysql\n    dsn: \"root:s3cr3t-Pa55@${HOST}/d\"\ntransactionLogDataSource: {driver: sqlite, dsn: x}\n", []string{
		`f.yaml:4:10: "dsn": the environment variable HOST is not set`}},
	{"lone dollar", "targetDataSource:\n  a: {driver: mysql, dsn: \"root:s3cr3t-Pa55$@tcp(h)/d\"}\ntransactionLogDataSource: {driver: sqlite, dsn: \"${X\"}\n", []string{
		`f.yaml:2:27: "dsn": a $ must be followed by {NAME}`, `f.yaml:3:49: "dsn": a $ must be followed by {NAME}`}},
	{"variable not quoted", "targetDataSource:\n  a: {driver: mysql, dsn: ${X}}\n", []string{`f.yaml:2:28: ',' or '}' must be specified (inside { } a value with ${NAME} must be quoted: "${NAME}")`}},
	{"not YAML", "targetDataSource:\n  a: {driver: mysql, dsn: \"root:s3cr3t-Pa55@tcp(h)/d}\n", []string{`f.yaml:2:27: could not find end character of double-quoted text`}},
	{"a tab", "targetDataSource:\n\ta: {driver: mysql, dsn: \"root:s3cr3t-Pa55@tcp(h)/d\"}\n", []string{`f.yaml:2:1: `}},
	{"a password as a block's header", "transactionLogDataSource:\n  dsn: |s3cr3t-Pa55\n    x\n", []string{`f.yaml:2:`}},
	{"tag", "transactionLogDataSource: {driver: sqlite, dsn: !!str x}\ntargetDataSource: {a: {driver: sqlite, dsn: y}}\n", []string{`f.yaml:1:49: YAML tags (!) are not supported`}},
	{"merge key", "targetDataSource:\n  a: &a {driver: sqlite, dsn: x}\n  b: {<<: *a}\ntransactionLogDataSource: {driver: sqlite, dsn: y}\n", []string{`f.yaml:3:7: merge keys (<<) are not supported`}},
	{"two documents", twoSQLite + "---\na: 1\n", []string{"f.yaml:6:2: a second YAML document"}},
	{"log in a target's file", "targetDataSource:\n  a: {driver: sqlite, dsn: \"file:/tmp/x/../l.db\"}\ntransactionLogDataSource: {driver: sqlite, dsn: /tmp/l.db}\n", []string{
		`f.yaml:2:28: data source "a": it is the SQLite file of the transaction log`}},
	{"several at once", "targetDataSource:\n  a: {driver: sqlit, dsn: x}\ntransactionLogDataSource: {driver: sqlite}\njobConfig: {cron: no, nme: x}\n", []string{
		"f.yaml:2:15:", "f.yaml:3:1:", "f.yaml:4:19:", "f.yaml:4:23:"}},
}

func TestABadConfigurationIsRefusedWithItsPlaceAndNoPassword(t *testing.T) {
	for _, tc := range badConfigs {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseConfig("f.yaml", []byte(tc.src), env(nil), wholeFile)
			var ce *ConfigError
			if !errors.As(err, &ce) {
				t.Fatalf("got %v, want a *ConfigError", err)
			}
			if strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "Pa55") {
				t.Errorf("the password is in the message:\n%v", err)
			}
			lines := strings.Split(err.Error(), "\n")
			for i, want := range tc.want {
				if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
					t.Fatalf("got\n%v\nwant these beginnings\n%s", err, strings.Join(tc.want, "\n"))
				}
			}
			if len(lines) > len(tc.want) {
				t.Errorf("more lines than wanted:\n%v", err)
			}
		})
	}
}

func TestWithoutAConfigurationTheMessageSaysWhereOneMayBe(t *testing.T) {
	t.Chdir(t.TempDir())
	a := &app{Getenv: env(nil)}
	_, err := a.readConfig("", onlyLog)
	if err == nil || err.Error() != "there is no bed-job.yaml in the working directory: name a configuration file with -c or in $BED_JOB_CONFIG" {
		t.Errorf("got %v", err)
	}
	_, err = a.readConfig("other.yaml", onlyLog)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "other.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestTheEnvironmentNamesTheConfigurationUnlessAFlagDoes(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"flag", "env", DefaultConfig} {
		write(t, filepath.Join(dir, name), "transactionLogDataSource: {driver: sqlite, dsn: "+name+"}\n")
	}
	none, named := &app{Getenv: env(nil)}, &app{Getenv: env(map[string]string{ConfigVariable: "env"})}
	for _, tc := range []struct {
		app        *app
		flag, want string
	}{{none, "", DefaultConfig}, {named, "", "env"}, {named, "flag", "flag"}} {
		c, err := tc.app.readConfig(tc.flag, onlyLog)
		if err != nil || c.log.dsn != tc.want {
			t.Errorf("read %v, %v; want %s", c, err, tc.want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func FuzzNoConfigurationPanicsOrLeaksItsPassword(f *testing.F) {
	for _, tc := range badConfigs {
		f.Add(tc.src)
	}
	f.Add(wholeExample)
	f.Fuzz(func(t *testing.T, src string) {
		_, err := parseConfig("f.yaml", []byte(src), env(map[string]string{"X": "1"}), wholeFile)
		if err != nil && strings.Contains(err.Error(), ":"+password+"@") {
			t.Errorf("the password is in the message:\n%v", err)
		}
	})
}
