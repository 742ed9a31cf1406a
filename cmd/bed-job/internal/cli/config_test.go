package cli

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/cases"
)

// password is in every configuration of these tests, if possible.
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

func TestConfigurationWithShardingJDBCNamesIsRead(t *testing.T) {
	c := mustParse(t, wholeExample, map[string]string{
		"ORDERS_0_DSN": "root:s3cr3t-Pa55@tcp(127.0.0.1:3306)/orders_0",
		"BED_LOG_DSN":  "root@tcp(127.0.0.1:3306)/bed",
	}, wholeFile)
	if got := c.log; got.driver != "mysql" || got.dsn != "root@tcp(127.0.0.1:3306)/bed" {
		t.Errorf("the log is %q %q", got.driver, got.dsn)
	}
	if len(c.targets) != 2 || c.targets[1].name != "orders_0" || c.targets[1].dsn != "root:s3cr3t-Pa55@tcp(127.0.0.1:3306)/orders_0" ||
		c.targets[0].name != "ledger" || c.targets[0].driver != "postgres" {
		t.Errorf("the targets are %+v", c.targets)
	}
	want := asyncjob.Config{
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
	if d := c.job.WithDefaults(); d.MaxDeliveryTryDelay != time.Minute || d.Cron != "0/5 * * * * ?" {
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

func TestVariableValueIsNeitherParsedNorExpanded(t *testing.T) {
	evil := "file:/tmp/x.db}\nextra: {$$ ${HOME} \"'"
	c := mustParse(t, `transactionLogDataSource: {driver: sqlite, dsn: "${D}$$${D}"}`, map[string]string{"D": evil}, logAndTargets)
	if want := evil + "$" + evil; c.log.dsn != want {
		t.Errorf("the dsn is %q, want %q", c.log.dsn, want)
	}
}

func TestInspectionNeedsOnlyTheLogsSection(t *testing.T) {
	c := mustParse(t, wholeExample, map[string]string{"BED_LOG_DSN": "root@tcp(127.0.0.1:3306)/bed"}, logAndTargets)
	if c.log.dsn == "" || len(c.targets) != 2 || c.targets[1].problem == nil {
		t.Errorf("read %+v", c)
	}
}

func TestAnchorsAndBlocksAreRead(t *testing.T) {
	c := mustParse(t, "targetDataSource:\n  a: &a\n    driver: sqlite\n    dsn: |\n      file:/tmp/a.db\n  b: *a\ntransactionLogDataSource:\n  driver: sqlite\n  dsn: >-\n    file:/tmp/log.db\n", nil, wholeFile)
	if len(c.targets) != 2 || c.targets[1].dsn != "file:/tmp/a.db" || c.log.dsn != "file:/tmp/log.db" {
		t.Errorf("read %+v", c)
	}
}

// badConfigs are the files of testdata/config by name.
func badConfigs(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(cases.Path(t, "config/*.yaml"))
	if err != nil || len(files) < 30 {
		t.Fatalf("found %d configurations, %v", len(files), err)
	}
	list := map[string]string{}
	for _, file := range files {
		list[filepath.Base(file)] = cases.Text(t, "config/"+filepath.Base(file))
	}
	return list
}

// The errors are in testdata/config/errors.txt: -update writes them anew.
func TestBadConfigurationIsRefusedWithPlaceWithoutPassword(t *testing.T) {
	list := badConfigs(t)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		_, err := parseConfig(name, []byte(list[name]), env(nil), wholeFile)
		var ce *ConfigError
		if !errors.As(err, &ce) {
			t.Fatalf("%s: got %v, want a *ConfigError", name, err)
		}
		if strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "Pa55") {
			t.Errorf("%s: the password is in the message:\n%v", name, err)
		}
		out.WriteString(err.Error() + "\n\n")
	}
	cases.CheckText(t, "config/errors.txt", out.String())
}

func TestMissingConfigurationSaysWhereItMayBe(t *testing.T) {
	t.Chdir(t.TempDir())
	a := &app{Getenv: env(nil), logLevel: "info", logTimeout: 1}
	_, err := a.readConfig(logAndTargets)
	if err == nil || err.Error() != "there is no bed-job.yaml in the working directory: name a configuration file with -c or in $BED_JOB_CONFIG" {
		t.Errorf("got %v", err)
	}
	a.configPath = "other.yaml"
	_, err = a.readConfig(logAndTargets)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "other.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestEnvironmentNamesTheConfigurationUnlessAFlagDoes(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"flag", "env", DefaultConfig} {
		write(t, filepath.Join(dir, name), "transactionLogDataSource: {driver: sqlite, dsn: "+name+"}\n")
	}
	none, named := env(nil), env(map[string]string{ConfigVariable: "env"})
	for _, tc := range []struct {
		env        func(string) (string, bool)
		flag, want string
	}{{none, "", DefaultConfig}, {named, "", "env"}, {named, "flag", "flag"}} {
		a := &app{Getenv: tc.env, configPath: tc.flag, logLevel: "info", logTimeout: 1}
		c, err := a.readConfig(logAndTargets)
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
	for _, src := range badConfigs(f) {
		f.Add(src)
	}
	f.Add(wholeExample)
	f.Fuzz(func(t *testing.T, src string) {
		_, err := parseConfig("f.yaml", []byte(src), env(map[string]string{"X": "1"}), wholeFile)
		if err != nil && strings.Contains(err.Error(), ":"+password+"@") {
			t.Errorf("the password is in the message:\n%v", err)
		}
	})
}
