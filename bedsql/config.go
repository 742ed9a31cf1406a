package bedsql

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/slogger"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Guarantee is how often a delivered write takes effect.
type Guarantee uint8

const (
	// AtLeastOnce applies a write again when it is not known whether it was
	// applied. It needs idempotent SQL.
	AtLeastOnce Guarantee = iota
	// ExactlyOnce applies a write once. Every attempt leaves a receipt in the target's table
	// bed_receipt, in the same local transaction as the write, and an attempt that meets the
	// receipt applies nothing. It cannot cover tables without transactions (MyISAM), and does not
	// promise any order.
	ExactlyOnce
)

// PinnedPolicy is the policy for a write on a connection whose session holds state that a retry
// elsewhere would not see.
type PinnedPolicy uint8

const (
	// PinnedPassThrough hands the write straight to the driver, unlogged and unretried, with a
	// count and one warning for each connection.
	PinnedPassThrough PinnedPolicy = iota
	// PinnedRefuse returns ErrPinned and sends nothing.
	PinnedRefuse
)

// Removal is the time at which the entry of a delivered write is removed.
type Removal uint8

const (
	// RemovalByGuarantee removes it after the call returns under ExactlyOnce, and
	// before the caller is answered under AtLeastOnce.
	RemovalByGuarantee Removal = iota
	// RemovalBeforeReturn removes it before the caller is answered.
	RemovalBeforeReturn
	// RemovalAfterReturn removes the entry after the call returns, together with others. After a
	// crash in between, the job delivers the write again. Under ExactlyOnce that delivery meets
	// its receipt. Under AtLeastOnce it may overwrite later changes, so choose it there only for
	// writes that allow it.
	RemovalAfterReturn
)

// Logging is the time at which the entry of a write is written: at the latest before the caller is
// answered, unless the write is applied and needs no entry. It holds for single writes and for the
// COMMIT of local transactions, also in immediate soft transactions. A staged soft transaction
// always writes its entries before it sends anything, so that each part is delivered or parked, or
// nothing is sent at all. For RunUnlogged with a staged transaction see [Staged].
type Logging uint8

const (
	// LogBefore writes the entry before it sends the write. A sent write arrives, even if the
	// process crashes; a write that cannot be logged is not sent (ErrNotLogged). This is
	// Sharding-JDBC's order.
	LogBefore = Logging(besteffort.LogBefore)
	// LogAlongside writes the entry while the write is under way, and answers the caller when both
	// are done: in the time of one round trip instead of two. If the caller crashes in between,
	// the job delivers the write, provided that the entry arrived. If the entry cannot be written,
	// an applied write returns its Result, with a warning and a count (Counters.AppliedUnlogged).
	// A write that is not applied returns ErrNotLogged, and a write in doubt returns
	// ErrUnknownOutcome.
	LogAlongside = Logging(besteffort.LogAlongside)
	// LogOnFailure writes the entry only when the write has failed, or its outcome is not known;
	// then the write is retried and left to the job as ever. A write that succeeds, or is refused,
	// costs nothing in the log. An answered write is as safe as under LogBefore. A caller that
	// crashes during a write leaves it applied or not, as with the bare driver. ErrNotLogged and
	// ErrUnknownOutcome have the same meaning as under LogAlongside.
	LogOnFailure = Logging(besteffort.LogOnFailure)
)

// Config configures a wrapped driver. The zero value of every field but
// Storage means its default.
type Config struct {
	// Storage keeps the transaction log. Required. The caller closes it, after the databases that
	// use it.
	Storage txlog.Storage
	// SyncMaxDeliveryTryTimes is the number of retries inside the call after a failed first
	// attempt. Default 3, as in Sharding-JDBC.
	SyncMaxDeliveryTryTimes int
	// NoSyncRetry leaves a failed first attempt to the job at once.
	NoSyncRetry bool
	// Guarantee is how often a delivered write takes effect. Default AtLeastOnce.
	Guarantee Guarantee
	// Logging is when the entry of a write is written. Default LogBefore.
	Logging Logging

	// ReceiptRetention is how long to keep a receipt that could not be erased at once because an
	// attempt may still come. It counts from the time at which the job finds the entry gone.
	// Default 7 days.
	ReceiptRetention time.Duration
	// KeyRetention is how long to keep the receipt, with the answer, of a write under an
	// idempotency key. It counts from the time at which the job finds no entry under the key.
	// Default 7 days.
	KeyRetention time.Duration

	// RetryInitial is the pause before the first retry inside the call; it
	// doubles up to RetryMax and is jittered by half. Default 20 ms.
	RetryInitial time.Duration
	// RetryMax caps that pause. Default 500 ms.
	RetryMax time.Duration
	// AttemptTimeout bounds each attempt inside the call, the first one included, with its dial,
	// and so a COMMIT, even if the caller's context never ends. An attempt that it cuts off may
	// have been applied. The connection is then closed, the call tries no more, and the caller
	// gets ErrPending, or ErrUnknownOutcome if no entry was or can be written. It should exceed
	// the slowest write. It does not bound queries, unlogged writes, or the statements of a local
	// transaction before its COMMIT. Default 30 s; negative: no bound.
	AttemptTimeout time.Duration
	// RetryTimeout bounds all retries of one write inside the call together;
	// the caller's context bounds them too. Default 10 s.
	RetryTimeout time.Duration
	// Lease is how long an entry belongs to its writer without a renewal. A busy writer renews it;
	// a vanished writer holds the job up for that long. Default 30 s, at least 100 ms.
	Lease time.Duration
	// LogTimeout bounds each write to the log once the write itself has run, even if the caller's
	// context has ended by then. It also bounds the look-up of the place of receipts in the log,
	// and the wait of sql.DB.Close for repeated removals. Default 5 s.
	LogTimeout time.Duration
	// RunUnlogged runs a write although its entry could not be written before it, instead of
	// returning ErrNotLogged. It logs an error line for each such write. The write runs once,
	// without a retry. Its caller gets the driver's own error, or ErrUnknownOutcome if its context
	// ended during the write. With a Logging other than LogBefore it affects only staged soft
	// transactions. Default false.
	RunUnlogged bool
	// OrderWait is how long a write under WithOrderKey waits in the call for an earlier one under
	// its key, before it is left to the job with ErrPending. The caller's context bounds the wait
	// too. A local transaction does not wait. Default 0: no wait.
	OrderWait time.Duration
	// Pinned is the policy for a write on a connection that holds session state. Default
	// PinnedPassThrough.
	Pinned PinnedPolicy
	// KeepSessionState keeps a connection with session state (a SET, a user variable, a temporary
	// table, LOCK TABLES, raw access) in the pool as it is, as the driver without bed would do.
	// Writes of its next users then run unlogged. Default false: when the connection returns to
	// the pool, PostgreSQL's session is reset and any other connection is closed. One warning
	// names the first such statement. A SQLite database in memory is always kept, because it would
	// disappear with its last connection. SQLite's boolean pragmas are no such state: entries
	// carry them.
	KeepSessionState bool
	// SessionSettings names the settings of a session that belong to an entry although no DSN shows
	// them, such as a tenant that pgx's hooks set (AfterConnect, ResetSession). On PostgreSQL they
	// are run-time parameters (app.tenant_id, role, search_path), on MySQL and MariaDB user
	// variables (@tenant). Each logged write reads them on its connection before anything else, in
	// one round trip; a local transaction reads them once, before its COMMIT. The entry keeps the
	// values. Retries and the job set them before the statements run. Without a connection to read
	// them from, a write returns ErrNotLogged; a setting without a value is an error, too. role and
	// search_path need a ReceiptSchema. Default nil: none, with one warning if pgx's connector has
	// hooks. An empty list says that the hooks change nothing that matters.
	SessionSettings []string
	// Guard is the policy for a write that is not idempotent. Default GuardWarn.
	Guard GuardPolicy
	// Removal is the time at which the entry of a delivered write is removed. Default
	// RemovalByGuarantee. The number of waiting removals is bounded, and closing the database
	// completes them.
	Removal Removal
	// MaxUnitStatements is how many statements of one local transaction the log keeps. A larger
	// transaction runs as ever. But when the answer to its COMMIT is lost, it is parked for an
	// operator instead of delivered again; under ExactlyOnce its receipt decides. It also bounds
	// the writes for one data source in a staged soft transaction. Default 1000, at most
	// 4096.
	MaxUnitStatements int
	// MaxUnitBytes is the same limit in bytes of SQL and parameters. The packet
	// limit of the log's database should exceed it. Default 4 MiB.
	MaxUnitBytes int

	// Bus spreads events of every write to listeners. Default nil: no events.
	Bus *listener.Bus
	// Counters count the outcomes of writes. Default nil: nothing is counted.
	Counters *Counters
	// Logger receives messages for the operator, without values of parameters. Default logrus's
	// standard logger.
	Logger logrus.FieldLogger
	// Slog, a *slog.Logger, receives the messages instead of Logger. Default: Logger.
	Slog slogger.Logger
}

func (c Config) withDefaults() Config {
	c.SyncMaxDeliveryTryTimes = cmp.Or(c.SyncMaxDeliveryTryTimes, 3)
	if c.NoSyncRetry {
		c.SyncMaxDeliveryTryTimes = 0
	}
	c.ReceiptRetention = cmp.Or(c.ReceiptRetention, attempt.DefaultRetention)
	c.KeyRetention = cmp.Or(c.KeyRetention, attempt.DefaultRetention)
	c.RetryInitial = cmp.Or(c.RetryInitial, 20*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 500*time.Millisecond)
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, 30*time.Second)
	if c.AttemptTimeout < 0 {
		c.AttemptTimeout = math.MaxInt64 / 2 // a century
	}
	c.RetryTimeout = cmp.Or(c.RetryTimeout, 10*time.Second)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.LogTimeout = cmp.Or(c.LogTimeout, 5*time.Second)
	c.MaxUnitStatements = cmp.Or(c.MaxUnitStatements, 1000)
	c.MaxUnitBytes = cmp.Or(c.MaxUnitBytes, 4<<20)
	c.Logger = slogger.Of(c.Logger, c.Slog)
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	return c
}

// validate reports every mistake at once.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("bed: Config."+format, args...))
	}
	if s := reflect.ValueOf(c.Storage); !s.IsValid() || s.Kind() == reflect.Pointer && s.IsNil() {
		bad("Storage is missing: give it a log from txlog.Open")
	}
	for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
		if name := v.Type().Field(i).Name; v.Field(i).CanInt() && v.Field(i).Int() < 0 && name != "AttemptTimeout" {
			bad("%s is negative", name)
		}
	}
	if c.Lease > 0 && c.Lease < 100*time.Millisecond {
		bad("Lease is %v, it must be at least 100ms", c.Lease)
	}
	if c.MaxUnitStatements > entry.MaxStatements {
		bad("MaxUnitStatements is %d, it can be %d at most", c.MaxUnitStatements, entry.MaxStatements)
	}
	for _, f := range []struct {
		name        string
		value, last uint8
	}{
		{"Guarantee", uint8(c.Guarantee), uint8(ExactlyOnce)},
		{"Logging", uint8(c.Logging), uint8(LogOnFailure)},
		{"Removal", uint8(c.Removal), uint8(RemovalAfterReturn)},
		{"Pinned", uint8(c.Pinned), uint8(PinnedRefuse)},
		{"Guard", uint8(c.Guard), uint8(GuardOff)},
	} {
		if f.value > f.last {
			bad("%s %d is unknown", f.name, f.value)
		}
	}
	return errors.Join(errs...)
}
