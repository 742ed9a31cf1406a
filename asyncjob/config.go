package asyncjob

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener"
)

const (
	// NoDelay as a Config.MaxDeliveryTryDelay or Config.RetryDelay means none
	// at all, where 0 means the default.
	NoDelay time.Duration = -1
	// NoJitter as a Config.RetryJitter means none, where 0 means the default.
	NoJitter = -1.0
)

// Config is how a job works. The zero value of each field means its default.
type Config struct {
	// Name names the job in its log lines. Defaults to "bestEffortsDeliveryJob".
	Name string
	// Cron says when [Job.Run] begins a round: second, minute, hour, day of
	// month, month, day of week, in local time unless it begins with
	// "CRON_TZ=Europe/Berlin ". Quartz's "?" is read as "*"; days of the week
	// are best written as names (MON-FRI), because as numbers they count from
	// 0 for Sunday, not from 1 as in Quartz. "@every 30s" is taken too.
	// Defaults to "0/5 * * * * ?", every five seconds.
	Cron string
	// TransactionLogFetchDataCount is how many units of a data source are
	// claimed at once, in a round's first claim maybe less. While claims come
	// back full, the next is made when half of one has begun: up to one and a
	// half times as many are in memory. Defaults to 100.
	TransactionLogFetchDataCount int
	// MaxDeliveryTryTimes is after how many failed tries of the job a unit is
	// parked. An outage of its data source is not a try, and contention with other
	// transactions none for a day. Defaults to 3.
	MaxDeliveryTryTimes int
	// MaxDeliveryTryDelay is how old a unit must be before the job touches it.
	// Defaults to 60 s; [NoDelay] means that any age will do.
	MaxDeliveryTryDelay time.Duration

	// RetryDelay is how long a unit rests after its first failed try. Defaults
	// to MaxDeliveryTryDelay; [NoDelay] means until the next round.
	RetryDelay time.Duration
	// RetryMultiplier is by what the rest grows with each further failed try;
	// at least 1. Defaults to 2.
	RetryMultiplier float64
	// RetryDelayMax caps the rest, before jitter. Defaults to an hour, or to
	// RetryDelay if that is longer.
	RetryDelayMax time.Duration
	// RetryJitter spreads each rest by this fraction up and down, so that what
	// failed together does not come back together; below 1. Defaults to 0.2
	// (±20 %); [NoJitter] means none.
	RetryJitter float64

	// DeliveryTimeout bounds one attempt to deliver one unit, with its dial.
	// It should be longer than the data sources' lock wait timeouts, so that a
	// database can answer for itself: the default of 75 s is longer than the
	// 50 s of MySQL's innodb_lock_wait_timeout. What it cuts off is in doubt
	// and counts as a try. A driver that ignores its context is waited for.
	DeliveryTimeout time.Duration
	// ProbeTimeout bounds the dial and ping that find out whether a data
	// source is reachable. Defaults to 5 s.
	ProbeTimeout time.Duration
	// Lease is for how long claimed units belong to this job; it is renewed
	// while they wait or are delivered. The units of a process that dies are
	// free for others after it. At least a millisecond. Defaults to 60 s.
	Lease time.Duration
	// Concurrency is how many units of one data source are delivered at the
	// same time, each on a connection of its own. SQLite, which has one writer
	// at a time, is always delivered to one by one. While applications that use
	// the log write to the data source, about once a second, all jobs together have
	// an eighth; then units are not joined by DeliveryBatch either. Units that failed
	// before, and a statement of which none was delivered just now, have half of them at
	// most. Defaults to 16.
	Concurrency int
	// DeliveryBatch is how many units may be delivered in one local transaction
	// when more wait than there are connections. It is a good deal faster than
	// one each, but locks that a unit takes are then held until the others are
	// through, and all of them are in doubt when COMMIT is not answered. Should
	// one fail they are rolled back and each is delivered on its own, so all
	// tables have to be transactional. Units that are delivered exactly once,
	// or are in doubt already, are never joined. Events of joined units are
	// published once they are through. Defaults to 1: none.
	DeliveryBatch int
	// UnknownDataSourceDelay is how long a unit rests that cannot be delivered for a
	// reason that only an operator can fix: its data source is not among the
	// targets, its settings cannot be applied there, or its receipt cannot be kept
	// (no table, no rights, another place than the log names). No try is counted.
	// Defaults to 60 s.
	UnknownDataSourceDelay time.Duration
	// ShutdownTimeout bounds what is in flight once a round's context is done;
	// what it cuts off is left in doubt, without a try. Defaults to 20 s, less
	// than the time that service managers give a process to end.
	ShutdownTimeout time.Duration

	// ReceiptRetention is how long a receipt of an exactly-once unit is kept in
	// its target when it cannot be erased at once, because an attempt may still
	// come: from when a purge finds that the unit is not in the log any more.
	// Give it the value of bedsql.Config. Defaults to 7 days.
	ReceiptRetention time.Duration
	// KeyRetention is the same for receipts under a caller's idempotency key.
	// Defaults to 7 days.
	KeyRetention time.Duration
	// PurgeInterval is how often receipts whose retention is over are purged
	// from each target; the first time in the job's first round. Defaults to
	// an hour.
	PurgeInterval time.Duration

	// Logger takes the job's log lines, which never hold a parameter's value:
	// of what a database says of a delivery they hold only its codes, the whole
	// text is in the log's last_error. Defaults to logrus's standard logger.
	Logger logrus.FieldLogger
	// Bus gets, with listener.AsyncJob as the origin, the beginning and the end
	// of each attempt, of each unit that is parked, and of receipts that are purged.
	// Defaults to none.
	Bus *listener.Bus
	// OnProgress is called with what a round has done so far, after each unit
	// and each data source found unreachable: from several goroutines, but one
	// call at a time. It holds up the round, so it should be quick. Defaults
	// to none.
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
	if c.Logger == nil {
		c.Logger = logrus.StandardLogger()
	}
	return c
}

// validate expects WithDefaults to have been applied. It names all fields
// that are wrong, not only the first.
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
