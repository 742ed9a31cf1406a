package cli

import (
	"math"
	"strings"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/txlog"
)

// A jobConfig is what the section jobConfig says, as asyncjob takes it.
type jobConfig = asyncjob.Config

// Limits of what can be configured: an int everywhere, and the milliseconds
// that a time.Duration can hold.
const (
	maxCount  = math.MaxInt32
	maxMillis = math.MaxInt64 / int64(time.Millisecond)
)

// jobSection reads the section jobConfig.
type jobSection struct{ *decoder }

// read reads the section. An absent key leaves the zero value, which
// means the default; a 0 that is written down means zero.
func (d jobSection) read(e entry, c *jobConfig, run *runConfig) {
	text := func(to *string) func(entry) {
		return func(f entry) {
			s, ok := d.text(f)
			if ok && strings.TrimSpace(s) == "" {
				d.fail(f.node, "%s is empty", f.key)
			}
			*to = s
		}
	}
	count := func(to *int) func(entry) {
		return func(f entry) {
			n, _ := d.number(f, 1, maxCount)
			*to = int(n)
		}
	}
	millis := func(to *time.Duration, lo int64, zero time.Duration) func(entry) {
		return func(f entry) {
			n, ok := d.number(f, lo, maxMillis)
			if *to = time.Duration(n) * time.Millisecond; ok && n == 0 {
				*to = zero
			}
		}
	}
	before := len(d.problems)
	ok := d.fields(e.at, e.node, e.key, map[string]func(entry){
		"name": text(&c.Name),
		"cron": func(f entry) {
			before := len(d.problems)
			if text(&c.Cron)(f); len(d.problems) == before {
				d.check(f, jobConfig{Cron: c.Cron})
			}
		},
		"transactionLogFetchDataCount": count(&c.TransactionLogFetchDataCount),
		"maxDeliveryTryTimes":          count(&c.MaxDeliveryTryTimes),
		"maxDeliveryTryDelayMillis":    millis(&c.MaxDeliveryTryDelay, 0, asyncjob.NoDelay),
		"retryDelayMillis":             millis(&c.RetryDelay, 0, asyncjob.NoDelay),
		"retryDelayMaxMillis":          millis(&c.RetryDelayMax, 1, 0),
		"retryMultiplier":              func(f entry) { c.RetryMultiplier, _ = d.fraction(f, 1, math.MaxFloat64) },
		"retryJitter": func(f entry) {
			var ok bool
			if c.RetryJitter, ok = d.fraction(f, 0, 1); ok && c.RetryJitter == 0 {
				c.RetryJitter = asyncjob.NoJitter
			}
		},
		"deliveryTimeoutMillis":        millis(&c.DeliveryTimeout, 1, 0),
		"probeTimeoutMillis":           millis(&c.ProbeTimeout, 1, 0),
		"leaseMillis":                  millis(&c.Lease, 1, 0),
		"concurrency":                  count(&c.Concurrency),
		"deliveryBatch":                count(&c.DeliveryBatch),
		"unknownDataSourceDelayMillis": millis(&c.UnknownDataSourceDelay, 1, 0),
		"shutdownTimeoutMillis":        millis(&c.ShutdownTimeout, 1, 0),
		"receiptRetentionMillis":       millis(&c.ReceiptRetention, 1, 0),
		"keyRetentionMillis":           millis(&c.KeyRetention, 1, 0),
		"purgeIntervalMillis":          millis(&c.PurgeInterval, 1, 0),
		"exitIfLogUnavailable":         func(f entry) { run.exitIfLogUnavailable = d.truth(f) },
		"activity":                     func(f entry) { run.noActivity = !d.truth(f) },
	})
	if ok && len(d.problems) == before {
		// What no key can tell alone: how they fit each other.
		d.check(entry{at: e.at, node: e.at}, *c)
	}
}

// check has the job itself judge a configuration, so that what is valid is said
// in one place.
func (d jobSection) check(e entry, c jobConfig) {
	job, err := asyncjob.New(txlog.NewMemory(), asyncjob.Targets{}, c)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			d.fail(e.node, "%s", strings.TrimPrefix(line, "asyncjob: "))
		}
		return
	}
	_ = job.Close()
}
