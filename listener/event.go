package listener

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/dialect"
)

// EventType is the point of an execution that an event reports.
type EventType uint8

// The points have their names from Sharding-JDBC 1.x. Each attempt of an execution has one
// BeforeExecute and one final ExecuteSuccess or ExecuteFailure.
const (
	// BeforeExecute comes before the attempt is sent. The entry is durable, unless Logging of
	// bedsql.Config is not LogBefore.
	BeforeExecute EventType = iota + 1
	// ExecuteSuccess means that the attempt delivered the unit.
	ExecuteSuccess
	// ExecuteFailure means that the attempt ended with Err.
	ExecuteFailure
	// Parked means that the unit is left for an operator, because of Err.
	Parked
	// Removed means that the job removed the entry of a refused write whose caller has the
	// refusal. A late write to the log had brought the entry back. It had no effect.
	Removed
	// Answered means that the caller of a write has its answer: Err, or delivered if Err is
	// nil. It comes once for each unit of an application, after its attempts, and also for a
	// unit whose entry could not be written.
	Answered
	// ReceiptsPurged means that the job erased Receipts receipts of the data source after their
	// retention. It has no unit.
	ReceiptsPurged
)

func (t EventType) String() string {
	names := [...]string{"unknown event", "before execute", "execute success", "execute failure", "parked", "removed", "answered", "receipts purged"}
	if int(t) >= len(names) {
		return names[0]
	}
	return names[t]
}

// Origin is the maker of an attempt.
type Origin uint8

// The origins.
const (
	// Caller is the application's own call.
	Caller Origin = iota + 1
	// SyncRetry is a retry inside the application's call.
	SyncRetry
	// AsyncJob is the job.
	AsyncJob
)

func (o Origin) String() string {
	names := [...]string{"unknown origin", "caller", "sync retry", "async job"}
	if int(o) >= len(names) {
		return names[0]
	}
	return names[o]
}

// Statement is one statement of an event's execution.
type Statement struct {
	// SQL is its text.
	SQL string
	// Parameters are its arguments: a copy, the listener's to keep. They contain the
	// application's data; think before writing them to a log.
	Parameters []driver.NamedValue
}

// Attempt is one attempt to deliver a unit, as reported by [Answered].
type Attempt struct {
	Origin Origin
	// Began is its start, on this process's clock, and Took its duration.
	Began time.Time
	Took  time.Duration
	// Err is the driver's error, nil after a delivery, and Class its meaning.
	Err   error
	Class dialect.Class
}

// Event reports one attempt to deliver one unit, or a change of the unit. It may be missing:
// a process that crashes reports no events.
type Event struct {
	Type   EventType
	Origin Origin
	// Time is the time of the event, on this process's clock.
	Time time.Time
	// ID is the unit's id in the transaction log.
	ID string
	// TransactionID is the soft transaction's id, or ID outside of soft transactions.
	TransactionID string
	// DataSource is the unit's data source.
	DataSource string
	// TraceParent is the W3C traceparent of the application's span at the write, from
	// [Bus.TraceParent]; empty without a span.
	TraceParent string
	// System is the kind of the data source in OpenTelemetry's words: mysql, also for MariaDB,
	// postgresql, sqlite, nats, rabbitmq, kafka, watermill for a publisher of another kind, or http
	// for a service. Namespace is its database, or the service's host:port. Either is empty if unknown.
	System, Namespace string
	// Statements are the unit's statements, in order; a single DML has one. Those of Answered
	// have no Parameters. ReceiptsPurged has none.
	Statements []Statement
	// Took is the attempt's duration in ExecuteSuccess and ExecuteFailure; in Answered it is
	// how long the caller waited for the write. For entries that the job delivers together it
	// is the time of all of them.
	Took time.Duration
	// LogTook is how long the log took to keep the unit; only in Answered, and 0 without a call
	// to the log.
	LogTook time.Duration
	// Attempts are the attempts before the caller's answer, in order; only in Answered.
	Attempts []Attempt
	// Receipts is the number of purged receipts.
	Receipts int
	// Err is the driver's error of the attempt; nil unless Type is ExecuteFailure, Parked or
	// Answered. In Answered it is the caller's error.
	Err error
	// Class is the meaning of Err.
	Class dialect.Class
	// Assumed is set for a success concluded from a duplicate key after an attempt with an
	// unknown outcome.
	Assumed bool
	// Found is set for a success known from the unit's receipt, which an earlier attempt left.
	Found bool
}

// Outcome names the caller's outcome in an [Answered] by [OutcomeOf]: "delivered", "pending"
// or "parked" (accepted), "refused" (also compensated, and "parked" in a soft transaction),
// "not_logged" or else "not_accepted", or "unknown".
func (e Event) Outcome() string {
	var refused *RefusedError
	var pending *PendingError
	switch OutcomeOf(e.Err) {
	case OutcomeDelivered:
		return "delivered"
	case OutcomeAccepted:
		if errors.As(e.Err, &pending) && pending.Parked {
			return "parked"
		}
		return "pending"
	case OutcomeNotAccepted:
		if errors.Is(e.Err, ErrNotLogged) {
			return "not_logged"
		}
		return "not_accepted"
	case OutcomeUnknown:
		return "unknown"
	default:
		if errors.As(e.Err, &refused) && !refused.Removed {
			return "parked"
		}
		return "refused"
	}
}
