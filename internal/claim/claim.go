// Package claim defines a job's work on a claimed unit, for the decorators of that work.
package claim

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
)

// Shortly is how long a unit rests with good prospects: another attempt was writing its
// receipt, or the data source was read-only.
const Shortly = time.Second

// Kind is how the work on a claimed unit ended.
type Kind uint8

const (
	Lost Kind = iota
	Delivered
	Failed
	Parked
	PushedBack
	Refused
	// Open means that the unit is refused or its receipt is void, and nothing was done about it.
	Open
)

// Result is the outcome of a claimed unit, and its evidence. The zero value means a lost
// unit. Undone means that it undid others.
type Result struct {
	Kind                   Kind
	Assumed, Found, Undone bool
}

// Job is the work of a job on a claimed unit, for its decorators.
type Job interface {
	// Attempt makes one attempt, unless the job cannot deliver the unit or waits returns true. The
	// decorator then decides about an Open unit; Settle does it as for a plain one.
	Attempt(waits func() (Result, bool)) (attempt.Outcome, Result)
	Settle(attempt.Outcome) Result
	// Ready reports whether the job can deliver a part, and Try makes an attempt at it. If they
	// return false, r is the result of the unit.
	Ready(part *entry.Unit) (r Result, ready bool)
	Try(part *entry.Unit, run attempt.Runner) (out attempt.Outcome, r Result, delivered bool)
	// Look looks up the receipt of a unit. After a failure, cut means that the job is ending or the
	// round has lost the data source; down means that the data source is unreachable.
	Look(dataSource string, of *entry.Unit) (met attempt.Outcome, cut, down bool)
	// States reads the states of units. Compensate starts the compensation of the unit's group.
	States(ids ...string) (states []entry.State, ok bool)
	Compensate(cause string) error
	// Finish, Remove, Park and PushBack end the work. Remove ignores the error gone.
	Finish(attempt.Outcome) Result
	Remove(gone error) bool
	Park(out attempt.Outcome, v entry.Verdict, said string) Result
	PushBack(entry.Verdict) Result
	// Describe returns a text for the log without values. RetryDelay is how long a unit rests after
	// a number of tries. Waits reports whether this round does not come back to the data source.
	Describe(error) string
	RetryDelay(tries int) time.Duration
	Waits() (over bool)
	Logger() logrus.FieldLogger
}
