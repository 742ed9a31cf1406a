package asyncjob

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/slogger"
	"github.com/bedsql/bed/listener"
)

const (
	// NoDelay as a Config.MaxDeliveryTryDelay or Config.RetryDelay means no delay; 0 means the
	// default.
	NoDelay time.Duration = -1
	// NoJitter as a Config.RetryJitter means no jitter; 0 means the default.
	NoJitter = -1.0
)

// Config configures a job. The zero value of each field means its default.
type Config struct {
	// Name names the job in its log lines. Defaults to "bestEffortsDeliveryJob".
	Name string
	// Cron is the schedule of [Job.Run]'s rounds: second, minute, hour, day of month, month,
	// day of week, in local time unless it begins with "CRON_TZ=Europe/Berlin ". Quartz's "?"
	// means "*". Write days of the week as names (MON-FRI): as numbers they count from 0 for
	// Sunday, not from 1 as in Quartz. "@every 30s" is valid, too. Defaults to "0/5 * * * * ?",
	// every five seconds.
	Cron string
	// TransactionLogFetchDataCount is the number of units in one claim of a data source; a
	// round's first claim may be smaller. While claims come back full, the next one is made
	// when half of the last has begun: up to one and a half times as many units are in memory.
	// Defaults to 100.
	TransactionLogFetchDataCount int
	// MaxDeliveryTryTimes is the number of the job's failed tries after which a unit is parked.
	// An outage of its data source does not count as a try, and neither does contention with
	// other transactions for a day. Defaults to 3.
	MaxDeliveryTryTimes int
	// MaxDeliveryTryDelay is the minimum age of a unit for the job. Defaults to 60 s; [NoDelay]
	// allows any age.
	MaxDeliveryTryDelay time.Duration

	// RetryDelay is how long a unit rests after its first failed try. Defaults
	// to MaxDeliveryTryDelay; [NoDelay] means until the next round.
	RetryDelay time.Duration
	// RetryMultiplier is the growth of the rest with each further failed try; at least 1.
	// Defaults to 2.
	RetryMultiplier float64
	// RetryDelayMax caps the rest, before jitter. Defaults to an hour, or to
	// RetryDelay if that is longer.
	RetryDelayMax time.Duration
	// RetryJitter spreads each rest by this fraction up and down, so that units that failed
	// together do not return together; below 1. Defaults to 0.2 (±20 %); [NoJitter] means no
	// jitter.
	RetryJitter float64

	// DeliveryTimeout bounds one attempt to deliver one unit, with its dial. Make it longer
	// than the data sources' lock wait timeouts, so that a database can answer for itself: the
	// default of 75 s is longer than the 50 s of MySQL's innodb_lock_wait_timeout. A cut-off
	// attempt is in doubt and counts as a try. The job waits for a driver that ignores its
	// context.
	DeliveryTimeout time.Duration
	// ProbeTimeout bounds the dial and ping that check a data source. Defaults to 5 s.
	ProbeTimeout time.Duration
	// Lease is how long claimed units belong to this job. The job renews it while they wait or
	// are delivered. After it, the units of a dead process are free for others. At least a
	// millisecond. Defaults to 60 s.
	Lease time.Duration
	// Concurrency is the number of units of one data source that are delivered at the same
	// time, each on a connection of its own. SQLite has one writer at a time, so its units are
	// delivered one by one. While applications with the log write to the data source, about
	// once a second, all jobs together use an eighth, and DeliveryBatch joins no units. At most
	// half is for units that failed before, and half for a statement without a delivery just
	// now. Defaults to 16.
	Concurrency int
	// DeliveryBatch is the maximum number of units in one local transaction while more units
	// wait than there are connections. It is a good deal faster than separate delivery. But the
	// locks of one unit are then held until the others are through, and an unanswered COMMIT
	// leaves all of them in doubt. If one fails, they are rolled back and delivered separately,
	// so all tables must be transactional. Exactly-once units and units in doubt are never
	// joined. Events of joined units are published once they are through. Defaults to 1: no
	// joining.
	DeliveryBatch int
	// UnknownDataSourceDelay is how long a unit rests if only an operator can make it
	// deliverable: its data source is not among the targets, its settings cannot be applied
	// there, or its receipt cannot be kept (no table, no rights, another place than in the
	// log). The job counts no try. Defaults to 60 s.
	UnknownDataSourceDelay time.Duration
	// ShutdownTimeout bounds attempts in flight once a round's context is done. A cut-off
	// attempt is left in doubt, without a try. Defaults to 20 s, less than service managers
	// give a process to end.
	ShutdownTimeout time.Duration

	// ReceiptRetention is how long the target keeps the receipt of an exactly-once unit if it
	// cannot be erased at once, because an attempt may still come. It counts from a purge that
	// no longer finds the unit in the log. Use the same value as in bedsql.Config. Defaults to
	// 7 days.
	ReceiptRetention time.Duration
	// KeyRetention is the same for receipts under a caller's idempotency key.
	// Defaults to 7 days.
	KeyRetention time.Duration
	// PurgeInterval is how often receipts are purged from each target after their retention;
	// first in the job's first round. Defaults to an hour.
	PurgeInterval time.Duration

	// Logger takes the job's log lines, which never contain a parameter's value: of a
	// database's answer to a delivery they contain only the codes. The whole text is in the
	// log's last_error. Defaults to logrus's standard logger.
	Logger logrus.FieldLogger
	// Slog, a *slog.Logger, takes the log lines instead of Logger. Defaults to Logger.
	Slog slogger.Logger
	// Bus receives the events of the job, with listener.AsyncJob as the origin: the beginning
	// and end of each attempt, parked units, and purged receipts. Defaults to none.
	Bus *listener.Bus
	// OnProgress is called with the round's report so far, after each unit and each data source
	// found unreachable. Calls come from several goroutines, but never overlap. It holds up the
	// round, so it should be quick. Defaults to none.
	OnProgress func(Report)
}

// WithDefaults returns c with the default in place of each zero field.
func (c Config) WithDefaults() Config {
	// The first five are Sharding-JDBC's.
	c.Name = cmp.Or(c.Name, "bestEffortsDeliveryJob")
	c.Cron = cmp.Or(c.Cron, "0/5 * * * * ?")
	c.TransactionLogFetchDataCount = cmp.Or(c.TransactionLogFetchDataCount, 100)
	c.MaxDeliveryTryTimes = cmp.Or(c.MaxDeliveryTryTimes, 3)
	c.MaxDeliveryTryDelay = cmp.Or(c.MaxDeliveryTryDelay, 60*time.Second)
	c.RetryDelay = cmp.Or(c.RetryDelay, c.MaxDeliveryTryDelay)
	c.RetryMultiplier = cmp.Or(c.RetryMultiplier, 2.0)
	c.RetryDelayMax = cmp.Or(c.RetryDelayMax, max(time.Hour, c.RetryDelay))
	c.RetryJitter = cmp.Or(c.RetryJitter, 0.2)
	c.DeliveryTimeout = cmp.Or(c.DeliveryTimeout, 75*time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 5*time.Second)
	c.Lease = cmp.Or(c.Lease, 60*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.DeliveryBatch = cmp.Or(c.DeliveryBatch, 1)
	c.UnknownDataSourceDelay = cmp.Or(c.UnknownDataSourceDelay, 60*time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	c.ReceiptRetention = cmp.Or(c.ReceiptRetention, attempt.DefaultRetention)
	c.KeyRetention = cmp.Or(c.KeyRetention, attempt.DefaultRetention)
	c.PurgeInterval = cmp.Or(c.PurgeInterval, time.Hour)
	c.Logger = slogger.Of(c.Logger, c.Slog)
	return c
}

// validate expects WithDefaults to have been applied. It names all wrong fields, not only
// the first.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("asyncjob: Config."+format, args...))
	}
	if _, err := parseSchedule(c.Cron); err != nil {
		bad("Cron is %q, but must be six fields, seconds first, such as %q: %w", c.Cron, "0/5 * * * * ?", err)
	}
	for v, i := reflect.ValueOf(*c), 0; i < v.NumField(); i++ {
		field, orNone := v.Type().Field(i).Name, ""
		switch value := v.Field(i).Interface().(type) {
		case int:
			if value < 1 {
				bad("%s is %d, but must be at least 1, or 0 for the default", field, value)
			}
		case time.Duration:
			if field == "MaxDeliveryTryDelay" || field == "RetryDelay" {
				orNone = ", or NoDelay"
			}
			if value <= 0 && (orNone == "" || value != NoDelay) && field != "Lease" {
				bad("%s is %v, but must be positive, or 0 for the default%s", field, value, orNone)
			}
		}
	}
	if c.Lease < time.Millisecond {
		bad("Lease is %v, but must be at least 1ms, or 0 for the default", c.Lease)
	}
	if c.RetryDelayMax > 0 && c.RetryDelayMax < c.RetryDelay {
		bad("RetryDelayMax is %v, less than RetryDelay, %v", c.RetryDelayMax, c.RetryDelay)
	}
	if !(c.RetryMultiplier >= 1) { // so that NaN fails too
		bad("RetryMultiplier is %v, but must be at least 1, or 0 for the default", c.RetryMultiplier)
	}
	if c.RetryJitter != NoJitter && !(c.RetryJitter >= 0 && c.RetryJitter < 1) {
		bad("RetryJitter is %v, but must be below 1, 0 for the default, or NoJitter", c.RetryJitter)
	}
	return errors.Join(errs...)
}

// retryDelay returns how long a unit rests after its failed try number tries (from 1).
func (c *Config) retryDelay(tries int) time.Duration {
	if c.RetryDelay <= 0 {
		return 0
	}
	b := &backoff.ExponentialBackOff{
		InitialInterval:     c.RetryDelay,
		RandomizationFactor: max(c.RetryJitter, 0),
		Multiplier:          c.RetryMultiplier,
		MaxInterval:         c.RetryDelayMax,
	}
	b.Reset()
	delay := b.NextBackOff()
	for i := 1; i < tries; i++ {
		delay = b.NextBackOff()
	}
	return delay
}

// storeBackOff paces the repetition of a failed write to the log.
func storeBackOff() *backoff.ExponentialBackOff {
	return jitter.BackOff(50*time.Millisecond, 2*time.Second)
}
