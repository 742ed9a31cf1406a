package listener

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/listener/delivery"
)

// EventType says at which point of an execution an event was made.
type EventType uint8

// The points, named as in Sharding-JDBC 1.x. An execution that is retried has
// one BeforeExecute and one final ExecuteSuccess or ExecuteFailure for each
// attempt.
const (
	// BeforeExecute: nothing has been sent yet. The entry is durable, unless
	// bedsql.Config asks for a Logging other than LogBefore.
	BeforeExecute EventType = iota + 1
	// ExecuteSuccess: the attempt delivered the unit.
	ExecuteSuccess
	// ExecuteFailure: the attempt ended with Err.
	ExecuteFailure
	// Parked: the unit is left for an operator; Err says why.
	Parked
	// Removed: the job removed the entry of a refused write whose caller knows of the
	// refusal. A write to the log that arrived late had brought the entry back.
	// Nothing is applied.
	Removed
	// Answered: the caller of a write has its answer: Err, or
	// delivered if that is nil. It comes once for each unit of an application, after
	// its attempts, and also for one whose entry could not be written.
	Answered
	// ReceiptsPurged: the job erased Receipts receipts of the
	// data source whose retention was over. It is about no unit.
	ReceiptsPurged
)

func (t EventType) String() string {
	names := [...]string{"unknown event", "before execute", "execute success", "execute failure", "parked", "removed", "answered", "receipts purged"}
	if int(t) >= len(names) {
		return names[0]
	}
	return names[t]
}

// Origin says who made an attempt.
type Origin uint8

// The origins.
const (
	// Caller: the application's own call.
	Caller Origin = iota + 1
	// SyncRetry: a retry inside the application's call.
	SyncRetry
	// AsyncJob: the job.
	AsyncJob
)

func (o Origin) String() string {
	names := [...]string{"unknown origin", "caller", "sync retry", "async job"}
	if int(o) >= len(names) {
		return names[0]
	}
	return names[o]
}

// Statement is one statement of the execution that an event tells of.
type Statement struct {
	// SQL is its text.
	SQL string
	// Parameters are its arguments: a copy, the listener's to keep. They hold
	// the application's data; think before writing them to a log.
	Parameters []driver.NamedValue
}

// Attempt is one attempt to deliver a unit, as [Answered] reports it.
type Attempt struct {
	Origin Origin
	// Began is when it began, on this process's clock, and Took how long it took.
	Began time.Time
	Took  time.Duration
	// Err is its error as the driver gave it, nil if it delivered the unit, and
	// Class what that means.
	Err   error
	Class delivery.Class
}

// Event tells of one attempt to deliver one unit, or of what happened to the unit.
// It may not come at all: a process that crashes tells nobody.
type Event struct {
	Type   EventType
	Origin Origin
	// Time is when the event was made, on this process's clock.
	Time time.Time
	// ID is the unit's id in the transaction log.
	ID string
	// TransactionID is the soft transaction's, or ID outside of any.
	TransactionID string
	// DataSource is where the unit is delivered.
	DataSource string
	// TraceParent is the W3C traceparent of the span in which the application wrote
	// the unit, as [Bus.TraceParent] gave it; empty if nothing did.
	TraceParent string
	// Statements are the unit's, in order; one for a single DML. Answered and
	// ReceiptsPurged come without.
	Statements []Statement
	// Took is how long the attempt took of which ExecuteSuccess and ExecuteFailure
	// tell; of Answered, how long the caller waited for the write. Of entries that
	// the job delivers together it is the time of all of them.
	Took time.Duration
	// LogTook is how long the log took to keep the unit; only with Answered, and 0
	// if it was not asked.
	LogTook time.Duration
	// Attempts are those that were made before the caller was answered, in order;
	// only with Answered.
	Attempts []Attempt
	// Receipts is how many were purged.
	Receipts int
	// Err is the attempt's error as the driver gave it; nil unless Type is
	// ExecuteFailure, Parked or Answered. With Answered it is what the caller was
	// told.
	Err error
	// Class says what Err means.
	Class delivery.Class
	// Assumed: a success concluded from a duplicate key after an attempt of
	// unknown outcome.
	Assumed bool
	// Found: a success known from the unit's receipt, which an earlier attempt left.
	Found bool
}

// Outcome names what the caller got that an [Answered] tells of, as [OutcomeOf] reads it:
// "delivered", "pending" or "parked" (accepted), "refused" (also compensated, and "parked" in
// a soft transaction), "not_logged" or else "not_accepted", or "unknown".
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
