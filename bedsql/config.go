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
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Guarantee is how often a delivered write takes effect.
type Guarantee uint8

const (
	// AtLeastOnce applies a write again when it is not known whether it was
	// applied. It needs idempotent SQL.
	AtLeastOnce Guarantee = iota
	// ExactlyOnce applies a write once: every attempt leaves a receipt in the
	// target's table bed_receipt, in the same local transaction as the write,
	// and an attempt that meets the receipt applies nothing. Tables without
	// transactions (MyISAM) cannot be covered. It does not promise any order.
	ExactlyOnce
)

// PinnedPolicy says what happens to a write on a connection whose session
// holds state that a retry elsewhere would not see.
type PinnedPolicy uint8

const (
	// PinnedPassThrough hands it straight to the driver, unlogged and
	// unretried, with a count and one warning for each connection.
	PinnedPassThrough PinnedPolicy = iota
	// PinnedRefuse answers ErrPinned and sends nothing.
	PinnedRefuse
)

// Removal says when the entry of a delivered write is removed.
type Removal uint8

const (
	// RemovalByGuarantee removes it after the call returns under ExactlyOnce, and
	// before the caller is answered under AtLeastOnce.
	RemovalByGuarantee Removal = iota
	// RemovalBeforeReturn removes it before the caller is answered.
	RemovalBeforeReturn
	// RemovalAfterReturn removes it after the call returns, together with others. A
	// crash in between has the job deliver the write again: under ExactlyOnce
	// it meets its receipt; under AtLeastOnce it may overwrite what was
	// written since, so choose it there only for writes that allow it.
	RemovalAfterReturn
)

// Logging says when the entry of a write is written: at the latest before the
// caller is answered, unless the write is applied and needs none. It holds for
// single writes and for the COMMIT of local transactions, also in immediate soft
// transactions. A staged soft transaction writes its entries before it sends anything,
// whatever Logging says: only so is each part of it delivered or parked, or nothing
// sent at all. What RunUnlogged makes of one whose entries cannot be written, [Staged]
// says.
type Logging uint8

const (
	// LogBefore writes it before the write is sent: a write that was sent
	// arrives, even if the process crashes, and one that cannot be logged is not sent
	// (ErrNotLogged). This is Sharding-JDBC's order.
	LogBefore = Logging(besteffort.LogBefore)
	// LogAlongside writes it while the write is under way, and the caller is
	// answered when both are done: the time of one round trip instead of two. A
	// caller that crashes in between leaves an entry, and the job delivers the
	// write, unless it crashed before the entry arrived. If the entry cannot be
	// written, a write that is applied returns its Result, with a warning and a
	// count (Counters.AppliedUnlogged); one that is not applied returns
	// ErrNotLogged, and one of which neither is known ErrUnknownOutcome.
	LogAlongside = Logging(besteffort.LogAlongside)
	// LogOnFailure writes it only when the write has failed, or its outcome is
	// not known; then the write is retried and left to the job as ever. A write
	// that succeeds, or is refused, costs nothing in the log. An answered write is
	// as safe as under LogBefore; a caller that crashes during a write leaves what
	// the bare driver leaves: it is applied or not, and nobody knows.
	// ErrNotLogged and ErrUnknownOutcome are as for LogAlongside.
	LogOnFailure = Logging(besteffort.LogOnFailure)
)

// Config configures a wrapped driver. The zero value of every field but
// Storage means its default.
type Config struct {
	// Storage keeps the transaction log. Required. It stays the caller's to
	// close, after the databases that use it.
	Storage txlog.Storage
	// SyncMaxDeliveryTryTimes is how many retries inside the call follow a
	// first attempt that failed. Default 3, as in Sharding-JDBC.
	SyncMaxDeliveryTryTimes int
	// NoSyncRetry leaves a failed first attempt to the job at once.
	NoSyncRetry bool
	// Guarantee is how often a delivered write takes effect. Default AtLeastOnce.
	Guarantee Guarantee
	// Logging is when the entry of a write is written. Default LogBefore.
	Logging Logging

	// ReceiptRetention is how long a receipt is kept that could not be erased
	// at once, because an attempt may still come, counted from when the job
	// finds its entry gone. Default 7 days.
	ReceiptRetention time.Duration
	// KeyRetention is how long the receipt of a write under an idempotency key
	// is kept, and with it the answer, counted from when the job finds that no
	// entry under the key is left. Default 7 days.
	KeyRetention time.Duration

	// RetryInitial is the pause before the first retry inside the call; it
	// doubles up to RetryMax and is jittered by half. Default 20 ms.
	RetryInitial time.Duration
	// RetryMax caps that pause. Default 500 ms.
	RetryMax time.Duration
	// AttemptTimeout bounds each attempt inside the call, the first one too, with its
	// dial, and so a COMMIT, even if the caller's context never ends. An attempt that it
	// cuts off may have been applied: its connection is closed, nothing more is tried
	// inside the call, and the caller gets ErrPending (ErrUnknownOutcome where the entry
	// is not written first and cannot be written then). It should exceed the slowest
	// write. The statements of a local transaction before its COMMIT, queries and
	// unlogged writes are not bounded. Default 30 s; negative: none.
	AttemptTimeout time.Duration
	// RetryTimeout bounds all retries of one write inside the call together;
	// the caller's context bounds them too. Default 10 s.
	RetryTimeout time.Duration
	// Lease is how long an entry belongs to its writer without being renewed. A
	// writer that is busy renews it; one that vanished holds the job up for
	// that long. Default 30 s, at least 100 ms.
	Lease time.Duration
	// LogTimeout bounds each write to the log once the write itself has run, even
	// if the caller's context has ended by then; the question to it where the data
	// source's receipts are; and how long sql.DB.Close waits for removals that
	// are being repeated. Default 5 s.
	LogTimeout time.Duration
	// RunUnlogged runs a write although its entry could not be written before it,
	// with an error line for each, instead of answering ErrNotLogged: once, without
	// a retry, and its caller gets the driver's own error, of whatever kind, or
	// ErrUnknownOutcome if its context ended while it ran. With
	// a Logging other than LogBefore it has effect only on staged soft transactions.
	// Default false.
	RunUnlogged bool
	// OrderWait is how long a write under WithOrderKey waits in the call while an earlier
	// one under its key is in the log, before it is left to the job with ErrPending; the
	// caller's context bounds it too. A local transaction does not wait. Default 0: not at all.
	OrderWait time.Duration
	// Pinned says what happens to a write on a connection that holds session
	// state. Default PinnedPassThrough.
	Pinned PinnedPolicy
	// KeepSessionState keeps a connection whose session holds state (a SET, a user
	// variable, a temporary table, LOCK TABLES, raw access) in the pool as it is, and
	// the writes of its next users unlogged, as the driver without bed would keep it.
	// Default false: when it goes back to the pool its session is reset where that
	// can be done (PostgreSQL), else it is closed; one warning names the first such
	// statement. A SQLite database in memory is kept, for it would be gone with its
	// last connection. SQLite's pragmas that are on or off hold no such state: entries
	// carry them.
	KeepSessionState bool
	// Guard says what happens to a write that is not idempotent. Default GuardWarn.
	Guard GuardPolicy
	// Removal says when the entry of a delivered write is removed. Default
	// RemovalByGuarantee. What waits is bounded and removed when the database
	// is closed.
	Removal Removal
	// MaxUnitStatements is how many statements of one local transaction are
	// kept in the log. A larger transaction runs as ever, but when the answer
	// to its COMMIT is lost it is parked for an operator instead of delivered
	// again; under ExactlyOnce its receipt decides. It also bounds the writes for
	// one data source that a staged soft transaction takes. Default 1000, at most
	// txlog.MaxStatements.
	MaxUnitStatements int
	// MaxUnitBytes is the same limit in bytes of SQL and parameters. The packet
	// limit of the log's database should exceed it. Default 4 MiB.
	MaxUnitBytes int

	// Bus spreads events of every write to listeners. Default nil: none.
	Bus *listener.Bus
	// Counters count what happens to writes. Default nil: nothing is counted.
	Counters *Counters
	// Logger takes what an operator should know; never a parameter's value.
	// Default logrus's standard logger.
	Logger logrus.FieldLogger
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
	if c.Logger == nil {
		c.Logger = logrus.StandardLogger()
	}
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
	if c.MaxUnitStatements > txlog.MaxStatements {
		bad("MaxUnitStatements is %d, it can be %d at most", c.MaxUnitStatements, txlog.MaxStatements)
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
