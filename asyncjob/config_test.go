package asyncjob

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func TestTheZeroConfigHasShardingJDBCsDefaults(t *testing.T) {
	t.Parallel()
	c := Config{}.WithDefaults()
	if c.Name != "bestEffortsDeliveryJob" || c.Cron != "0/5 * * * * ?" || c.TransactionLogFetchDataCount != 100 ||
		c.MaxDeliveryTryTimes != 3 || c.MaxDeliveryTryDelay != time.Minute {
		t.Errorf("the defaults are %+v", c)
	}
	if c.RetryDelay != c.MaxDeliveryTryDelay || c.RetryMultiplier != 2 || c.RetryDelayMax != time.Hour || c.RetryJitter != 0.2 {
		t.Errorf("the retry defaults are %+v", c)
	}
	if c.DeliveryTimeout <= 50*time.Second {
		t.Errorf("DeliveryTimeout %v does not outlast MySQL's lock wait of 50s", c.DeliveryTimeout)
	}
	if err := c.validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
	if again := c.WithDefaults(); again.RetryDelay != c.RetryDelay || again.Cron != c.Cron {
		t.Errorf("defaults applied twice change: %+v", again)
	}
}

func TestNoDelayIsNotTheDefault(t *testing.T) {
	t.Parallel()
	c := Config{MaxDeliveryTryDelay: NoDelay, RetryJitter: NoJitter}.WithDefaults()
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if rest := c.retryDelay(3); rest != 0 {
		t.Errorf("NoDelay means a rest of %v", rest)
	}
	c = Config{RetryDelay: 3 * time.Hour}.WithDefaults()
	if err := c.validate(); err != nil || c.RetryDelayMax != 3*time.Hour {
		t.Errorf("a first rest above the default cap: cap %v, %v", c.RetryDelayMax, err)
	}
}

func TestNewNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	good := (&fakeDB{}).target()
	for name, c := range map[string]struct {
		storage txlog.Storage
		targets Targets
		cfg     Config
		want    []string
	}{
		"nil storage":          {nil, nil, Config{}, []string{"storage is nil"}},
		"fetch count":          {nil, nil, Config{TransactionLogFetchDataCount: -1}, []string{"TransactionLogFetchDataCount", "-1"}},
		"try times":            {nil, nil, Config{MaxDeliveryTryTimes: -3}, []string{"MaxDeliveryTryTimes", "-3"}},
		"try delay":            {nil, nil, Config{MaxDeliveryTryDelay: -time.Second}, []string{"MaxDeliveryTryDelay", "NoDelay"}},
		"retry delay":          {nil, nil, Config{RetryDelay: -time.Second}, []string{"RetryDelay"}},
		"cap below first":      {nil, nil, Config{RetryDelay: time.Hour, RetryDelayMax: time.Minute}, []string{"RetryDelayMax"}},
		"multiplier":           {nil, nil, Config{RetryMultiplier: 0.5}, []string{"RetryMultiplier"}},
		"multiplier NaN":       {nil, nil, Config{RetryMultiplier: math.NaN()}, []string{"RetryMultiplier"}},
		"jitter":               {nil, nil, Config{RetryJitter: 1}, []string{"RetryJitter"}},
		"delivery timeout":     {nil, nil, Config{DeliveryTimeout: -1}, []string{"DeliveryTimeout"}},
		"probe timeout":        {nil, nil, Config{ProbeTimeout: -1}, []string{"ProbeTimeout"}},
		"lease":                {nil, nil, Config{Lease: time.Microsecond}, []string{"Lease"}},
		"concurrency":          {nil, nil, Config{Concurrency: -1}, []string{"Concurrency"}},
		"unknown delay":        {nil, nil, Config{UnknownDataSourceDelay: -1}, []string{"UnknownDataSourceDelay"}},
		"shutdown":             {nil, nil, Config{ShutdownTimeout: -1}, []string{"ShutdownTimeout"}},
		"cron":                 {nil, nil, Config{Cron: "every now and then"}, []string{"Cron", "seconds first"}},
		"target no connector":  {nil, Targets{"orders": {Dialect: good.Dialect}}, Config{}, []string{`"orders"`, "Connector"}},
		"target no dialect":    {nil, Targets{"orders": {Connector: good.Connector}}, Config{}, []string{`"orders"`, "Dialect"}},
		"target without name":  {nil, Targets{"": good}, Config{}, []string{"name is empty"}},
		"target in memory":     {nil, Targets{"m": {Connector: good.Connector, Dialect: good.Dialect, NoSideConnection: true}}, Config{}, []string{`"m"`, "memory"}},
		"target uncommitted":   {nil, Targets{"u": {Connector: good.Connector, Dialect: good.Dialect, AutocommitOff: true}}, Config{}, []string{`"u"`, "autocommit"}},
		"all of them together": {nil, Targets{"a": delivery.Target{}}, Config{Concurrency: -1, Lease: -1}, []string{"storage", `"a"`, "Concurrency", "Lease"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, err := New(c.storage, c.targets, c.cfg)
			if err == nil || j != nil {
				t.Fatalf("New returned %v, %v", j, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

func TestScheduleStartsWithSecondsAndAcceptsQuestionMark(t *testing.T) {
	t.Parallel()
	s, err := parseSchedule("CRON_TZ=UTC 0/5 * * * * ?")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	if got := s.Next(at); !got.Equal(at.Add(4 * time.Second)) {
		t.Errorf("the tick after %v is %v", at, got)
	}
	s, err = parseSchedule("CRON_TZ=UTC 0 30 1 ? * MON-FRI")
	if err != nil {
		t.Fatal(err)
	}
	friday := time.Date(2026, 2, 6, 1, 30, 0, 0, time.UTC)
	if got, want := s.Next(friday), friday.AddDate(0, 0, 3); !got.Equal(want) {
		t.Errorf("the tick after Friday's is %v, want %v", got, want)
	}
}

func TestBadScheduleIsAnError(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{
		" ", "* * * * *", "* * * * * * 2026", "60 * * * * ?", "0/0 * * * * ?", "x * * * * ?", ", * * * * ?",
		"0 0 0 31 2 ?", "TZ=UTC", "CRON_TZ=UTC", "TZ=Nowhere/None * * * * * ?", "@sometimes", "@every x",
	} {
		if s, err := parseSchedule(expr); err == nil {
			t.Errorf("%q is taken, next tick %v", expr, s.Next(time.Now()))
		}
	}
}

func TestRestsGrowByTheMultiplierToTheCap(t *testing.T) {
	t.Parallel()
	c := Config{RetryDelay: time.Minute, RetryJitter: NoJitter}.WithDefaults()
	for tries, want := range map[int]time.Duration{
		1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 6: 32 * time.Minute, 7: time.Hour, 1000: time.Hour,
	} {
		if got := c.retryDelay(tries); got != want {
			t.Errorf("after try %d a unit rests %v, want %v", tries, got, want)
		}
	}
}

func TestRestsAreJitteredByAFifth(t *testing.T) {
	t.Parallel()
	c := Config{RetryDelay: time.Minute}.WithDefaults()
	differ := false
	first := c.retryDelay(2)
	for range 200 {
		got := c.retryDelay(2)
		if got < 96*time.Second || got > 144*time.Second+1 {
			t.Fatalf("a rest of 2m became %v", got)
		}
		differ = differ || got != first
	}
	if !differ {
		t.Error("200 rests are all the same")
	}
}

func TestAReportIsOneLine(t *testing.T) {
	t.Parallel()
	r := Report{
		Counts: Counts{Claimed: 9, Delivered: 4, Assumed: 1, Failed: 2, Parked: 1, PushedBack: 1, Lost: 1},
		DataSources: map[string]DataSourceReport{
			"b": {Unreachable: errFake}, "a": {Unreachable: errFake}, "x": {Unknown: true}, "ok": {},
		},
		Duration: 1234567 * time.Microsecond,
	}
	want := "claimed 9, delivered 4 (assumed 1), failed 2, parked 1, pushed back 1, lost 1 in 1.235s; unknown: x; unreachable: a, b"
	if got := r.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
