package listener

import (
	"context"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Execution is one write on its way: the unit that is logged and the means to
// run it. It belongs to one goroutine.
type Execution struct {
	// Unit is what is logged.
	Unit *txlog.Unit
	// Dialect is its data source's.
	Dialect *delivery.Dialect
	// Erase is told of the unit's receipt when no attempt can need it any more;
	// may be nil.
	Erase func(receipt string)
	// Attempt runs the unit once. n is 0 for the caller's own execution, on
	// the caller's own connection; retries count from 1 and run on a
	// connection that was checked. It says how it ended, unless the driver panics.
	Attempt func(ctx context.Context, n int) attempt.Outcome
	// Void decides a unit with a receipt that is in doubt: after it the unit is
	// known to be applied, or known never to be (delivery.Dialect.Void). nil
	// for a unit without a receipt.
	Void func(ctx context.Context) attempt.Outcome
	// Answered notes in the receipt that Void left that the log is removed and the
	// caller answered (delivery.Dialect.Answered); may be nil.
	Answered func(ctx context.Context) attempt.Outcome
	// AnswerIsFinal: an answer of the database to attempt 0 is the caller's,
	// even one that a retry could mend. So it is with COMMIT.
	AnswerIsFinal bool
	// KeepRefused parks a refused unit instead of removing its log, as inside
	// a soft transaction. One whose idempotency key was used before for another
	// request is not kept: it could never be applied.
	KeepRefused bool
	// Behind: the log of a delivered unit is removed behind the caller.
	Behind bool
	// Outcome is the last attempt's.
	Outcome attempt.Outcome

	attempts int
	inDoubt  bool
	voided   bool // by this execution
	release  func()
	unlogged bool
	alone    [1]*txlog.Unit // Unit, for a write to the log
}

// Attempts counts the attempts so far.
func (x *Execution) Attempts() int { return x.attempts }

// InDoubt reports whether an attempt of this execution may have been applied
// without that being known.
func (x *Execution) InDoubt() bool { return x.inDoubt }

// run makes the next attempt.
func (x *Execution) run(ctx context.Context, bus *Bus) {
	ended := false
	defer func() {
		if !ended && x.release != nil {
			x.release() // a driver panicked: when the lease has run out, the job takes over
		}
	}()
	x.Outcome = x.Attempt(ctx, x.attempts)
	ended = true
	x.attempts++
	if x.Outcome.Maybe() {
		x.inDoubt = true
	}
	if bus.Listening() {
		t := ExecuteSuccess
		if x.Outcome.Err != nil {
			t = ExecuteFailure
		}
		bus.Publish(NewEvent(t, x.origin(), x.Unit, x.Outcome))
	}
}

func (x *Execution) origin() Origin {
	if x.attempts > 1 {
		return SyncRetry
	}
	return Caller
}

// Interceptor is a listener that takes part in executions instead of
// following them. Its methods run in the caller's goroutine.
type Interceptor interface {
	// BeforeExecute runs before anything is sent; an error ends the execution
	// and is the caller's.
	BeforeExecute(ctx context.Context, x *Execution) error
	// ExecuteSuccess runs after the first attempt delivered the unit.
	ExecuteSuccess(ctx context.Context, x *Execution) error
	// ExecuteFailure runs after the first attempt failed; it may run further
	// attempts through again. Its error is the caller's; nil means delivered.
	ExecuteFailure(ctx context.Context, x *Execution, again func(context.Context)) error
}

// Execute runs x under an interceptor and publishes its events. What it
// returns is the caller's answer by the rule of truth.
func (b *Bus) Execute(ctx context.Context, i Interceptor, x *Execution) error {
	if err := i.BeforeExecute(ctx, x); err != nil {
		return err
	}
	return b.Deliver(ctx, i, x)
}

// Deliver is the rest of Execute for an execution whose log is written.
func (b *Bus) Deliver(ctx context.Context, i Interceptor, x *Execution) error {
	if b.Listening() {
		b.Publish(NewEvent(BeforeExecute, Caller, x.Unit, attempt.Outcome{}))
	}
	x.run(ctx, b)
	if x.Outcome.Err == nil {
		return i.ExecuteSuccess(ctx, x)
	}
	return i.ExecuteFailure(ctx, x, func(ctx context.Context) { x.run(ctx, b) })
}
